"""Retrieval results in memory, and their files: DPR's JSON and TREC runs; larger scores are better."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.types import Passage, Question
from rag.data.files.dpr_family import DPR_RESULTS, RESULTS_SHAPE
from rag.data.files.record import Context, Record
from rag.data.files.tables import TREC_RUN

__all__ = ["RetrievalResult", "RetrievedPassage", "read_dpr_results", "write_dpr_results", "write_paths"]
__all__ += ["write_trec_run"]


@dataclass(frozen=True, slots=True)
class RetrievedPassage:
    """One passage of a result list.

    Attributes:
        id: passage id.
        title: its title.
        text: its text.
        score: larger is better; NaN if the file has none.
        has_answer: whether the text holds an answer; None if it was not looked at.
    """

    id: str
    title: str
    text: str
    score: float
    has_answer: bool | None = None


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """What was found for one question.

    Attributes:
        question: the question's text.
        answers: accepted answers, maybe none.
        passages: best first.
        id: question id; DPR's own files have none, then it is empty.
    """

    question: str
    answers: tuple[str, ...]
    passages: tuple[RetrievedPassage, ...]
    id: str = ""


def write_dpr_results(path: str | Path, results: Iterable[RetrievalResult]) -> int:
    """Write DPR's results JSON, streaming; the file appears whole. Returns how many results it holds.

    Each is `{"question", "answers", "ctxs": [{"id", "title", "text", "score", "has_answer"}]}` on a line of
    its own, with the question's "id" if it has one; scores are numbers (DPR's own script writes strings).

    Raises:
        DataError: a score that is not finite.
        ResourceError: the disk is full or not writable.
    """
    count = 0

    def records() -> Iterator[Record]:
        nonlocal count
        for result in results:
            contexts = tuple(Context(p.id, p.title, p.text, p.score, p.has_answer) for p in result.passages)
            yield Record(result.id, result.question, result.answers, contexts)
            count += 1

    assert DPR_RESULTS.write is not None
    DPR_RESULTS.write(Path(path), records())
    return count


def write_paths(
    path: str | Path, results: Iterable[tuple[Question, Sequence[tuple[float, Sequence[Passage]]]]]
) -> int:
    """Write MDR's results, a question a line; the file appears whole. Returns how many it holds.

    Each is `{"_id", "question", "candidate_chains": [[{"id", "title", "text"}, …], …], "scores": […]}`, best
    path first; MDR's own files have neither ids nor scores.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for question, paths in results:
            record = {
                "_id": question.id,
                "question": question.text,
                "candidate_chains": [[asdict(passage) for passage in passages] for _, passages in paths],
                "scores": [score for score, _ in paths],
            }
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def read_dpr_results(path: str | Path) -> Iterator[RetrievalResult]:
    """Stream DPR's results (a JSON list, or FiD's JSON lines), or read Pyserini's (an object by question id).

    Scores are taken as they are. Files that DPR wrote with its HNSW index hold distances, for which smaller
    is better.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz).

    Raises:
        DataError: malformed; names the record.
    """
    for number, record in enumerate(DPR_RESULTS.read(Path(path)), start=1):
        if any(context.text is None for context in record.contexts):
            raise DataError(f"{path}: record {number}: a passage without text, expected {RESULTS_SHAPE}")
        passages = tuple(map(_retrieved, record.contexts))
        yield RetrievalResult(record.question or "", record.answers or (), passages, record.id)


def _retrieved(context: Context) -> RetrievedPassage:
    score = math.nan if context.score is None else context.score
    return RetrievedPassage(context.id, context.title, context.text or "", score, context.has_answer)


def write_trec_run(
    path: str | Path, rankings: Iterable[tuple[str, Iterable[tuple[str, float]]]], *, tag: str = "rag"
) -> int:
    """Write `question_id Q0 passage_id rank score tag` lines; ranks from 1; scores read back exactly.

    Args:
        path: the file; it appears whole.
        rankings: for each question its id and (passage id, score), best first.
        tag: name of the run.

    Returns:
        How many lines were written.

    Raises:
        DataError: an id with white space, which the format cannot hold; scores that rise or are not finite; a
            passage twice for one question.
    """
    count = 0

    def records() -> Iterator[Record]:
        nonlocal count
        for question_id, ranking in rankings:
            contexts = tuple(Context(passage_id, score=float(score)) for passage_id, score in ranking)
            count += len(contexts)
            yield Record(question_id, contexts=contexts, meta={"tag": tag})

    assert TREC_RUN.write is not None
    TREC_RUN.write(Path(path), records())
    return count
