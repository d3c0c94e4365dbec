"""Training examples of retrievers: question, positives, negatives with provenance; DPR's training JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.files.json_file import first_mark
from rag.data.files.json_stream import iter_json_array, parse_json
from rag.data.files.streams import open_binary, read_lines
from rag.data.records import BadRecord, Problem, ReadReport

__all__ = [
    "ExampleReport",
    "Negative",
    "TrainingExample",
    "example_from_json",
    "example_to_json",
    "read_training_examples",
    "write_training_examples",
]

_ID_FIELDS = ("id", "_id", "qid", "question_id")
_PASSAGE_ID_FIELDS = ("passage_id", "psg_id", "id", "docid")
_SHAPE = (
    "expected {question, answers, positive_ctxs: [{title, text, passage_id}], hard_negative_ctxs: [...]}, "
    "in a JSON list or one a line"
)


@dataclass(frozen=True, slots=True)
class Negative:
    """A passage that should score low, and where it came from.

    Attributes:
        passage: its id is "" if the file has none.
        source: what found it, for example "bm25", "dense" or "bm25+dense"; "" if unknown.
        rank: 1-based rank in that search, if known.
        score: score of that search, if known; larger is better.
    """

    passage: Passage
    source: str = ""
    rank: int | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One question to train a retriever on.

    Attributes:
        id: unique in its file.
        question: its text.
        answers: accepted answers, maybe none.
        positives: passages that answer it, the gold one first; never empty.
        negatives: hard negatives, hardest first; maybe none.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    positives: tuple[Passage, ...]
    negatives: tuple[Negative, ...] = ()


@dataclass(slots=True)
class ExampleReport(ReadReport):
    """What was read: bad records as in every reader, and questions left out because they have no positive.

    Attributes:
        without_positives: questions dropped; they are not bad records.
        without_negatives: questions kept that have no negative of their own.
    """

    without_positives: int = 0
    without_negatives: int = 0
    without_positives_places: list[str] = field(default_factory=list)


def read_training_examples(
    path: str | Path, *, max_bad_share: float = 0.001, report: ExampleReport | None = None
) -> Iterator[TrainingExample]:
    """Stream training examples; only one record is held at a time.

    Read are DPR's training JSON (a list; passages named by `passage_id` or `psg_id`) and the same records one
    a line. `hard_negative_ctxs` are preferred, `negative_ctxs` are taken where there are none of them.
    Questions without positives are left out and counted, as in DPR; empty passages are bad records.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz).
        max_bad_share: highest tolerated share of malformed records, in [0, 1].
        report: filled while reading; the counts are logged at the end.

    Raises:
        DataError: no such file, too many malformed records (the first are listed with their places),
            malformed JSON, or no question with a positive.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering", section 3.2.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "train.jsonl"
        >>> _ = path.write_text('{"question": "who", "answers": ["x"], "positive_ctxs": [{"text": "x is"}]}')
        >>> next(read_training_examples(path)).positives[0].text
        'x is'
    """
    counts = ExampleReport() if report is None else report
    name, found = str(path), 0
    with open_binary(path) as stream:
        is_list = first_mark(stream) == "["
        records: Iterator[tuple[int, Any]] = iter_json_array(stream, name) if is_list else _lines(stream)
        for number, record in records:
            try:
                example = example_from_json(_good(record), f"q{number}")
            except ValueError as error:
                unit = "record" if is_list else "line"
                counts.add_bad(Problem(name, number, unit, "malformed record", str(error)))
                counts.check(max_bad_share, at_end=False)
                continue
            counts.add_good()
            if not example.positives:
                counts.without_positives += 1
                if len(counts.without_positives_places) < counts.shown:
                    counts.without_positives_places.append(f"{name}:{number}")
                continue
            counts.without_negatives += not example.negatives
            found += 1
            yield example
    counts.check(max_bad_share, at_end=True)
    log = get_logger(__name__)
    if counts.bad:
        log.warning("%s: %s", name, counts.summary())
    if counts.without_positives:
        places = ", ".join(counts.without_positives_places[:3])
        log.warning(
            "%s: %d questions without a positive left out (%s …)", name, counts.without_positives, places
        )
    if not found:
        raise DataError(f"{name}: no question with a positive passage", hint=_SHAPE)


def write_training_examples(path: str | Path, examples: Iterable[TrainingExample]) -> int:
    """Write DPR's training JSON, an example a line of the list; the file appears whole. Returns how many.

    Negatives carry their provenance as the keys `source`, `rank` and `score`.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for example in examples:
            file.write(",\n" if count else "[\n")
            file.write(json.dumps(example_to_json(example), ensure_ascii=False, allow_nan=False))
            count += 1
        file.write("\n]\n" if count else "[]\n")
    return count


def example_from_json(record: Any, fallback_id: str) -> TrainingExample:
    """Read one record; its positives may be empty.

    Raises:
        ValueError: it has another shape; says what was found.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    question = record.get("question")
    if "positive_ctxs" not in record and {"data", "context"} & record.keys():
        raise ValueError(
            "a question set such as SQuAD's or HotpotQA's: `rag mine` makes training examples of it"
        )
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"the question is missing or empty ({question!r:.40})")
    if "positive_ctxs" not in record:
        raise ValueError("no positive_ctxs")
    positives = tuple(_passage(item) for item in _list(record, "positive_ctxs"))
    hard = _list(record, "hard_negative_ctxs") or _list(record, "negative_ctxs")
    answers = record.get("answers", record.get("answer")) or ()
    answers = (answers,) if isinstance(answers, str) else tuple(answers)
    if not all(isinstance(answer, str) for answer in answers):
        raise ValueError("answers are not a list of texts")
    name = next((str(record[key]) for key in _ID_FIELDS if record.get(key) not in (None, "")), fallback_id)
    return TrainingExample(name, question, answers, positives, tuple(_negative(item) for item in hard))


def example_to_json(example: TrainingExample) -> dict[str, Any]:
    """The record that `example_from_json` reads back."""
    return {
        "id": example.id,
        "question": example.question,
        "answers": list(example.answers),
        "positive_ctxs": [_passage_json(passage) for passage in example.positives],
        "negative_ctxs": [],
        "hard_negative_ctxs": [_negative_json(negative) for negative in example.negatives],
    }


def _lines(stream: Any) -> Iterator[tuple[int, Any]]:
    for number, line in read_lines(stream):
        if isinstance(line, BadRecord):
            yield number, line
        elif line.strip():
            try:
                yield number, parse_json(line)
            except ValueError as error:
                yield number, BadRecord("not JSON", str(error))


def _good(record: Any) -> Any:
    if isinstance(record, BadRecord):
        raise ValueError(f"{record.reason}: {record.detail}")
    return record


def _list(record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list")
    return value


def _passage(value: Any) -> Passage:
    if not isinstance(value, Mapping):
        raise ValueError(f"a passage is not an object ({value!r:.40})")
    text, title = value.get("text"), value.get("title") or ""
    if not isinstance(text, str) or not isinstance(title, str) or not text.strip():
        raise ValueError(f"a passage has no text, or one that is not text ({text!r:.40})")
    try:
        (text + title).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a passage is not valid Unicode") from error
    found = next((value[key] for key in _PASSAGE_ID_FIELDS if value.get(key) not in (None, "")), "")
    return Passage(str(found), title, text)


def _negative(value: Any) -> Negative:
    passage = _passage(value)
    source, rank, score = value.get("source") or "", value.get("rank"), value.get("score")
    try:
        number = None if score is None else float(score)
        negative = Negative(passage, str(source), None if rank is None else int(rank), number)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rank or score of a passage is not a number ({rank!r}, {score!r})") from error
    return negative if number is None or math.isfinite(number) else replace(negative, score=None)


def _passage_json(passage: Passage) -> dict[str, Any]:
    head = {"passage_id": passage.id} if passage.id else {}
    return {**head, "title": passage.title, "text": passage.text}


def _negative_json(negative: Negative) -> dict[str, Any]:
    fields: dict[str, Any] = _passage_json(negative.passage)
    for key in ("source", "rank", "score"):
        if (value := getattr(negative, key)) not in (None, ""):
            fields[key] = value
    return fields
