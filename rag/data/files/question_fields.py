"""From a mapping with whatever field names, or a cell of a table, to a question."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rag.core.types import Question
from rag.data.files.fields import QUESTION_ID_FIELDS, first_of
from rag.data.files.json_stream import parse_json
from rag.data.files.question_gold import gold_fields
from rag.data.files.question_shapes import official_shape

__all__ = ["QUESTION_FIELDS", "parse_answer_cell", "question_from_mapping"]

QUESTION_FIELDS = ("question", "query", "input", "text")
_ANSWER_FIELDS = ("answers", "answer", "golden_answers", "possible_answers", "output", "short_answers")


def question_from_mapping(record: Any, fallback_id: str) -> Question:
    """Read one record of any known shape; fields that are not understood are kept in `meta`.

    Known are this system's sample, DPR's training and result files, NQ-open, KILT (answers and provenance out
    of `output`), BEIR queries, FiD, and the sets of `rag.data.files.question_shapes`.

    Raises:
        ValueError: no question, or answers of an unknown shape; the message says which.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    record = official_shape(record)
    used: set[str] = set()
    text_field = next((name for name in QUESTION_FIELDS if record.get(name) is not None), None)
    if text_field is None:
        raise ValueError(f"no question: expected one of {', '.join(QUESTION_FIELDS)}")
    text = record[text_field]
    used.add(text_field)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the question is not text, or is empty ({text!r:.60})")
    check_text(text)
    id_field, identifier = first_of(record, QUESTION_ID_FIELDS)
    if id_field is not None:
        if isinstance(identifier, bool) or not isinstance(identifier, str | int):
            raise ValueError(f"the id is not text or a whole number ({identifier!r:.60})")
        used.add(id_field)
    answers: tuple[str, ...] = ()
    fields, read = gold_fields(record)
    for name in _ANSWER_FIELDS:
        if name in record and not answers:
            read.add(name)
            answers = _answers(record[name])
            if name == "output":
                outputs = record[name] if isinstance(record[name], list) else []
                sets = (item.get("provenance") for item in outputs if isinstance(item, Mapping))
                fields["provenance"] = tuple(tuple(places) for places in sets if places)
    if record.get("is_impossible") is True:
        answers = ()
    meta = {key: value for key, value in record.items() if key not in used | read}
    return Question(fallback_id if id_field is None else str(identifier), text, answers, meta=meta, **fields)


def check_text(text: str) -> None:
    """Refuse text that cannot be written as UTF-8, or that holds NUL characters.

    Raises:
        ValueError: with the reason.
    """
    if "\x00" in text:
        raise ValueError("NUL character in the question")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("the question is not valid Unicode") from error


def parse_answer_cell(cell: str, *, must_be_list: bool) -> tuple[str, ...]:
    """Read a table's cell: a Python or JSON list of strings; or, if allowed, one answer as it is.

    Literals are parsed, never evaluated.

    Raises:
        ValueError: not a list of strings.

    Example:
        >>> parse_answer_cell("['Paris', \\"L'Isle\\"]", must_be_list=True)
        ('Paris', "L'Isle")
    """
    stripped = cell.strip()
    if not stripped.startswith(("[", "(")):
        if must_be_list:
            raise ValueError(f"expected a list such as ['answer'], found {stripped[:60]!r}")
        return (cell,) if stripped else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # regular expressions with escapes that Python does not know
            value = ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        try:
            value = parse_json(stripped)
        except ValueError:
            if must_be_list:
                raise ValueError(f"not a list of answers: {stripped[:60]!r}") from None
            return (cell,)
    return _answers(list(value) if isinstance(value, tuple) else value)


def _answers(value: Any) -> tuple[str, ...]:
    """Text, a list of texts, or of `{text}` or `{answer}`, or `{text: [...]}`; duplicates dropped."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Mapping):
        inner = value.get("text", value.get("answer"))
        if inner is None:
            raise ValueError("answers are an object without 'text'")
        return _answers(inner)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        found: dict[str, None] = {}
        for item in value:
            if isinstance(item, str):
                found[item] = None
            elif isinstance(item, Mapping):
                inner = item.get("text", item.get("answer"))
                if isinstance(inner, str):
                    found[inner] = None
                elif inner is not None:
                    raise ValueError(f"an answer is not text ({inner!r:.60})")
            elif isinstance(item, int | float) and not isinstance(item, bool):
                found[str(item)] = None
            else:
                raise ValueError(f"an answer is not text ({item!r:.60})")
        return tuple(found)
    raise ValueError(f"answers are neither text nor a list ({value!r:.60})")
