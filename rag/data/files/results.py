"""Files of retrieval results: DPR's JSON, MDR's paths and TREC runs; larger scores are better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rag.core.errors import DataError
from rag.core.types import Passage, Question
from rag.data.files.dpr_family import DPR_RESULTS, RESULTS_SHAPE, results_json
from rag.data.files.record import Context, Record, write_json_lines, write_json_list
from rag.data.files.tables import TREC_RUN

__all__ = ["read_dpr_results", "write_dpr_results", "write_paths", "write_trec_run"]


def write_dpr_results(path: str | Path, results: Iterable[Record]) -> int:
    """Write DPR's results JSON, streaming; the file appears whole. Returns how many results it holds.

    Each is `{"question", "answers", "ctxs": [{"id", "title", "text", "score", "has_answer"}]}` on a line of
    its own, with the question's "id" if it has one; scores are numbers (DPR's own script writes strings).

    Raises:
        DataError: a score that is not finite.
        ResourceError: the disk is full or not writable.
    """
    return write_json_list(Path(path), results_json(results))


def write_paths(
    path: str | Path, results: Iterable[tuple[Question, Sequence[tuple[float, Sequence[Passage]]]]]
) -> None:
    """Write MDR's results, a question a line; the file appears whole.

    Each is `{"_id", "question", "candidate_chains": [[{"id", "title", "text"}, …], …], "scores": […]}`, best
    path first; MDR's own files have neither ids nor scores.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    records = (
        {
            "_id": question.id,
            "question": question.text,
            "candidate_chains": [[asdict(passage) for passage in passages] for _, passages in paths],
            "scores": [score for score, _ in paths],
        }
        for question, paths in results
    )
    write_json_lines(Path(path), records)


def read_dpr_results(path: str | Path) -> Iterator[Record]:
    """Stream DPR's results (a JSON list, or FiD's JSON lines), or read Pyserini's (an object by question id).

    Scores are taken as they are. Files that DPR wrote with its HNSW index hold distances, for which smaller
    is better.

    Raises:
        DataError: malformed, or a passage without text; names the record.
    """
    for number, record in enumerate(DPR_RESULTS.read(Path(path)), start=1):
        if any(context.text is None for context in record.contexts):
            raise DataError(f"{path}: record {number}: a passage without text, expected {RESULTS_SHAPE}")
        yield record


def write_trec_run(
    path: str | Path, rankings: Iterable[tuple[str, Iterable[tuple[str, float]]]], *, tag: str = "rag"
) -> None:
    """Write `question_id Q0 passage_id rank score tag` lines; ranks from 1; scores read back exactly.

    `rankings` give for each question its id and (passage id, score), best first.

    Raises:
        DataError: an id with white space, which the format cannot hold; scores that rise or are not finite; a
            passage twice for one question.
    """
    records = (
        Record(
            question_id,
            contexts=tuple(Context(passage_id, score=float(score)) for passage_id, score in ranking),
            meta={"tag": tag},
        )
        for question_id, ranking in rankings
    )
    assert TREC_RUN.write is not None
    TREC_RUN.write(Path(path), records)
