"""DPR results and training JSON, FiD, pyserini's JSON, NQ-open."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.data.examples import (
    Example,
    candidate_to_json,
    example_from_json,
    example_to_json,
    head_to_json,
    with_meta,
)
from rag.data.files.formats import PASSAGE_PARTS, QUESTION_PARTS, Format, as_json
from rag.data.files.record import json_records, write_json_lines

_PASSAGES = PASSAGE_PARTS | {"scores", "has_answer", "passage fields"}
_RETRIEVED = QUESTION_PARTS | {"contexts"} | _PASSAGES
_TEXTS = frozenset({"question", "contexts", "passage texts"})


def _read(path: Path) -> Iterator[Example]:
    for place, value in json_records(path):
        try:
            yield example_from_json(value)
        except (ValueError, DataError) as error:
            raise DataError(f"{place}: {error}") from error


def _results_json(example: Example) -> dict[str, Any]:
    contexts = [candidate_to_json(candidate, "id") for candidate in example.candidates]
    return with_meta({**head_to_json(example), "ctxs": contexts}, example)


def _nq_json(example: Example) -> dict[str, Any]:
    head = head_to_json(example)
    return with_meta({"question": head.pop("question"), "answer": head.pop("answers"), **head}, example)


write_results = as_json(_results_json)

DPR_RESULTS = Format(
    "dpr-results", "DPR's retrieval results: a JSON list with ctxs", _read, write_results, _RETRIEVED, _TEXTS
)
FID = Format(
    "fid", "FiD's JSON lines with ctxs", _read, as_json(_results_json, write_json_lines), _RETRIEVED, _TEXTS
)
PYSERINI = Format("pyserini", "pyserini's JSON: question id → contexts with docid and “title\\ntext”", _read)
DPR_TRAINING = Format(
    "dpr-train", "DPR's training JSON: positive, negative and hard negative ctxs", _read,
    as_json(example_to_json), QUESTION_PARTS | {"positives", "negatives", "hard_negatives"} | _PASSAGES,
    frozenset({"question", "positives", "passage texts"}),
)  # fmt: skip
NQ_OPEN = Format(
    "nq-open", "questions with answers as JSON lines", _read, as_json(_nq_json, write_json_lines),
    QUESTION_PARTS, frozenset({"question"}),
)  # fmt: skip
