"""Retrieval results on disk: DPR's JSON, TREC runs and relevance judgements; larger scores are better."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.data.files.json_file import first_mark
from rag.data.files.json_stream import iter_json_array, load_json, parse_json
from rag.data.files.streams import open_binary, read_lines
from rag.data.records import BadRecord

__all__ = [
    "DprResultsWriter",
    "RetrievalResult",
    "RetrievedPassage",
    "RunLine",
    "load_trec_run",
    "open_dpr_results",
    "read_dpr_results",
    "read_qrels",
    "read_trec_run",
    "write_dpr_results",
    "write_qrels",
    "write_trec_run",
]


@dataclass(frozen=True, slots=True)
class RetrievedPassage:
    """One passage of a result list.

    Attributes:
        id: passage id.
        title: its title.
        text: its text.
        score: larger is better.
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


class DprResultsWriter:
    """Writes results one by one into an open file; made by `open_dpr_results`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.count = 0

    def write(self, result: RetrievalResult) -> None:
        """Append one result.

        Raises:
            DataError: a score that is not finite.
        """
        record: dict[str, Any] = {"id": result.id} if result.id else {}
        record |= {"question": result.question, "answers": list(result.answers), "ctxs": []}
        for passage in result.passages:
            context: dict[str, Any] = {
                "id": passage.id,
                "title": passage.title,
                "text": passage.text,
                "score": _finite(passage.score, f"passage {passage.id!r} of question {result.question!r}"),
            }
            if passage.has_answer is not None:
                context["has_answer"] = bool(passage.has_answer)
            record["ctxs"].append(context)
        self._file.write(",\n" if self.count else "\n")
        self._file.write(json.dumps(record, ensure_ascii=False))
        self.count += 1


@contextmanager
def open_dpr_results(path: str | Path) -> Iterator[DprResultsWriter]:
    """Write DPR's results JSON one result at a time; the file appears when the block ends without error.

    Each result is `{"question", "answers", "ctxs": [{"id", "title", "text", "score", "has_answer"}]}` on a
    line of its own, with the question's "id" if it has one; scores are numbers (DPR's own script writes
    strings).

    Raises:
        ResourceError: the disk is full or not writable.
    """
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write("[")
        writer = DprResultsWriter(file)
        yield writer
        file.write("\n]\n")


def write_dpr_results(path: str | Path, results: Iterable[RetrievalResult]) -> int:
    """Write all results; returns how many. See `open_dpr_results`."""
    with open_dpr_results(path) as writer:
        for result in results:
            writer.write(result)
    return writer.count


def read_dpr_results(path: str | Path, *, strip_id_prefix: str = "") -> Iterator[RetrievalResult]:
    """Stream DPR's results (a JSON list, or FiD's JSON lines), or read Pyserini's (an object by question id).

    Scores are taken as they are. Files that DPR wrote with its HNSW index hold distances, for which smaller
    is better.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz).
        strip_id_prefix: taken off passage ids, for example "wiki:" of newer DPR versions.

    Raises:
        DataError: malformed; names the record.
    """
    name = str(path)
    with open_binary(path) as stream:
        for place, record in _result_records(stream, name):
            try:
                yield _result(record, strip_id_prefix)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                found = f"no field {error}" if isinstance(error, KeyError) else str(error)
                raise DataError(f"{place}: not a retrieval result: {found}") from error


def _result_records(stream: io.BufferedReader, name: str) -> Iterator[tuple[str, Any]]:
    if first_mark(stream) == "[":
        for number, record in iter_json_array(stream, name):
            yield f"{name}: record {number}", record
        return
    head = stream.peek(1 << 16).lstrip()
    first, line_end, _ = head.partition(b"\n")
    if line_end and first.rstrip().endswith(b"}"):
        for number, line in read_lines(stream):
            place = f"{name}:{number}"
            if isinstance(line, BadRecord):
                raise DataError(f"{place}: {line.reason} ({line.detail})")
            if line.strip():
                try:
                    record = parse_json(line)
                except ValueError as error:
                    raise DataError(f"{place}: {error}") from error
                yield place, record
        return
    value = load_json(stream, name)
    if not isinstance(value, dict):
        raise DataError(f"{name}: expected a list of results, or an object by question id")
    for key, record in value.items():
        if not isinstance(record, dict):
            raise DataError(f"{name}: question {key!r} is not an object")
        yield f"{name}: question {key!r}", {"id": key, **record}


def _result(record: Mapping[str, Any], prefix: str) -> RetrievalResult:
    contexts = record["ctxs"] if "ctxs" in record else record["contexts"]
    passages: list[RetrievedPassage] = []
    for context in contexts:
        passage_id = str(context["id"] if "id" in context else context["docid"]).removeprefix(prefix)
        text, title = context["text"], context.get("title")
        if title is None:
            # Pyserini keeps "title\ntext" in one field.
            head, line_end, rest = text.partition("\n")
            title, text = (head.strip('"'), rest) if line_end else ("", text)
        score = float(context["score"]) if context.get("score") is not None else math.nan
        passages.append(RetrievedPassage(passage_id, title, text, score, context.get("has_answer")))
    answers = record.get("answers", record.get("answer", ()))
    answers = (answers,) if isinstance(answers, str) else tuple(answers)
    return RetrievalResult(str(record["question"]), answers, tuple(passages), str(record.get("id", "")))


class RunLine(NamedTuple):
    """One line of a TREC run."""

    question_id: str
    passage_id: str
    rank: int
    score: float
    tag: str


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
    _check_token(tag, "tag")
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for question_id, ranking in rankings:
            _check_token(question_id, "question id")
            last, seen = math.inf, set[str]()
            for rank, (passage_id, value) in enumerate(ranking, start=1):
                _check_token(passage_id, "passage id")
                score = _finite(value, f"passage {passage_id!r} of question {question_id!r}")
                if score > last:
                    raise DataError(
                        f"question {question_id!r}: the score rises at rank {rank}, expected best first"
                    )
                if passage_id in seen:
                    raise DataError(
                        f"question {question_id!r}: passage {passage_id!r} stands twice in its ranking"
                    )
                last = score
                seen.add(passage_id)
                file.write(f"{question_id} Q0 {passage_id} {rank} {score!r} {tag}\n")
                count += 1
    return count


def read_trec_run(path: str | Path) -> Iterator[RunLine]:
    """Stream the lines of a run, in file order.

    Raises:
        DataError: a malformed line; names it.
    """
    for place, fields in _token_lines(path, (6,)):
        try:
            yield RunLine(fields[0], fields[2], int(fields[3]), float(fields[4]), fields[5])
        except ValueError as error:
            raise DataError(f"{place}: rank or score is not a number ({error})") from error


def load_trec_run(path: str | Path) -> dict[str, dict[str, float]]:
    """A whole run as question id → passage id → score.

    Raises:
        DataError: a malformed line.
    """
    run: dict[str, dict[str, float]] = {}
    for line in read_trec_run(path):
        run.setdefault(line.question_id, {})[line.passage_id] = line.score
    return run


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]]) -> int:
    """Write `question_id 0 passage_id relevance` lines; returns how many.

    Raises:
        DataError: an id with white space.
    """
    lines: list[str] = []
    for question_id, judged in qrels.items():
        for passage_id, relevance in judged.items():
            _check_token(question_id, "question id")
            _check_token(passage_id, "passage id")
            lines.append(f"{question_id} 0 {passage_id} {int(relevance)}\n")
    with atomic_path(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8", newline="\n")
    return len(lines)


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Read relevance judgements: TREC's four columns, or BEIR's three with a header.

    Raises:
        DataError: a malformed line; names it.
    """
    qrels: dict[str, dict[str, int]] = {}
    for place, fields in _token_lines(path, (3, 4)):
        if fields[0] == "query-id":
            continue
        try:
            qrels.setdefault(fields[0], {})[fields[-2]] = int(fields[-1])
        except ValueError as error:
            raise DataError(f"{place}: relevance is not a whole number ({fields[-1]!r})") from error
    return qrels


def _token_lines(path: str | Path, widths: tuple[int, ...]) -> Iterator[tuple[str, list[str]]]:
    with open_binary(path) as stream:
        for number, line in read_lines(stream):
            place = f"{path}:{number}"
            if isinstance(line, BadRecord):
                raise DataError(f"{place}: {line.reason} ({line.detail})")
            fields = line.split()
            if not fields:
                continue
            if len(fields) not in widths:
                expected = " or ".join(map(str, widths))
                raise DataError(f"{place}: {len(fields)} fields, expected {expected}")
            yield place, fields


def _check_token(value: str, what: str) -> None:
    if not value or len(value.split()) != 1 or value != value.strip():
        raise DataError(
            f"{what} {value!r} is empty or holds white space, which the TREC format cannot express",
            hint="write the results as JSON, or use ids without spaces",
        )


def _finite(score: float, what: str) -> float:
    value = float(score)
    if not math.isfinite(value):
        raise DataError(f"{what} has score {value}, expected a finite number")
    return value
