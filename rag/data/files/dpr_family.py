"""DPR results and training JSON, FiD, pyserini's JSON, NQ-open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.data.files.fields import PASSAGE_ID_FIELDS, first_of, passage_of
from rag.data.files.record import (
    QUESTION_PARTS,
    Context,
    Format,
    Reader,
    Record,
    as_json,
    dumps,
    finite,
    json_records,
    open_text,
    strings,
    write_json_lines,
)

_ALL_CONTEXT_PARTS = frozenset(
    {"passage ids", "passage texts", "titles", "scores", "has_answer", "passage fields"}
)
TRAINING_ROLES = {
    "positive_ctxs": "positives",
    "negative_ctxs": "negatives",
    "hard_negative_ctxs": "hard_negatives",
}
RESULTS_SHAPE = "{question, answers, ctxs: [{id, title, text, score, has_answer}]}"
_CONTEXT_FIELDS = frozenset({*PASSAGE_ID_FIELDS, "title", "text", "score", "has_answer"})


def _contexts(record: dict[str, Any], key: str) -> tuple[Context, ...]:
    values = record.pop(key, None) or ()
    if not isinstance(values, list | tuple):
        raise ValueError(f"{key} is not a list")
    return tuple(map(_context, values))


def _context(value: Any) -> Context:
    passage = passage_of(value)
    rest = {key: held for key, held in value.items() if key not in _CONTEXT_FIELDS}
    has_answer = value.get("has_answer")
    return Context(
        passage.id,
        passage.title,
        passage.text if value.get("text") is not None else None,
        None if value.get("score") is None else finite(value["score"], "a passage"),
        None if has_answer is None else bool(has_answer),
        rest,
    )


def _context_json(context: Context, id_name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {id_name: context.id} if context.id else {}
    fields |= {"title": context.title, "text": context.text or ""}
    if context.score is not None:
        fields["score"] = finite(context.score, f"passage {context.id!r}")
    fields |= {"has_answer": context.has_answer} if context.has_answer is not None else {}
    return {**fields, **context.extra}


def _nq_record(value: Mapping[str, Any]) -> Record:
    rest = dict(value)
    question = rest.pop("question", None)
    if not isinstance(question, str):
        raise ValueError("no question")
    key, identifier = first_of(rest, ("id", "_id", "qid"))
    if key is not None:
        del rest[key]
    given = [rest.pop(key) for key in ("answers", "answer") if key in rest]
    answers = strings(given[0], "the question") if given else None
    return Record("" if key is None else str(identifier), question, answers, meta=rest)


def _result_record(value: Mapping[str, Any]) -> Record:
    record = _nq_record(value)
    rest = dict(record.meta)
    if not {"ctxs", "contexts"} & rest.keys():
        raise ValueError(f"no ctxs, expected {RESULTS_SHAPE}")
    if "ctxs" not in rest:  # pyserini's: what has no id is a `docid` too
        listed = rest.pop("contexts") or ()
        rest["ctxs"] = [{"docid": "", **c} if isinstance(c, Mapping) else c for c in listed]
    return replace(record, contexts=_contexts(rest, "ctxs"), meta=rest)


def training_record(value: Mapping[str, Any], roles: Mapping[str, str] = TRAINING_ROLES) -> Record:
    """A record of DPR's training files.

    Args:
        roles: key of a list of passages → the field of `Record` that takes them.

    Raises:
        ValueError, DataError: it has another shape; says what was found.
    """
    record = _nq_record(value)
    rest = dict(record.meta)
    lists = {role: _contexts(rest, key) for key, role in roles.items()}
    return replace(record, **lists, meta=rest)  # type: ignore[arg-type]


def _reader(parse: Callable[[Mapping[str, Any]], Record]) -> Reader:
    def read(path: Path) -> Iterator[Record]:
        for place, value in json_records(path):
            try:
                yield parse(value)
            except (ValueError, DataError) as error:
                raise DataError(f"{place}: {error}") from error

    return read


def _head(record: Record) -> dict[str, Any]:
    head: dict[str, Any] = {"id": record.id} if record.id else {}
    return {**head, "question": record.question, "answers": list(record.answers or ())}


def _results_json(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        contexts = [_context_json(context, "id") for context in record.contexts]
        yield {**_head(record), "ctxs": contexts, **record.meta}


def _training_json(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        contexts = {
            key: [_context_json(c, "passage_id") for c in getattr(record, role)]
            for key, role in TRAINING_ROLES.items()
        }
        yield {**_head(record), **contexts, **record.meta}


def _write_pyserini(path: Path, records: Iterable[Record]) -> None:
    with open_text(path) as file:
        separator = "{\n"
        for count, record in enumerate(records):
            contexts = []
            for context in record.contexts:
                value = _context_json(context, "docid")
                title = value.pop("title")
                if "\n" in title:
                    raise DataError(
                        f"passage {context.id!r}: pyserini's format cannot hold a title with a line end"
                    )
                contexts.append({**value, "text": f"{title}\n{value['text']}"})
            body = {
                "question": record.question,
                "answers": list(record.answers or ()),
                "contexts": contexts,
                **record.meta,
            }
            file.write(f"{separator}{dumps(record.id or str(count))}: {dumps(body)}")
            separator = ",\n"
        file.write("\n}\n" if separator != "{\n" else "{}\n")


def _nq_json(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        identifier = {"id": record.id} if record.id else {}
        yield {"question": record.question, "answer": list(record.answers or ()), **identifier, **record.meta}


_RETRIEVED = QUESTION_PARTS | {"contexts"} | _ALL_CONTEXT_PARTS
_TEXTS = frozenset({"question", "contexts", "passage texts"})

DPR_RESULTS = Format(
    "dpr-results", "DPR's retrieval results: a JSON list with ctxs", _RETRIEVED, _TEXTS,
    _reader(_result_record), as_json(_results_json),
)  # fmt: skip
FID = Format(
    "fid",
    "FiD's JSON lines with ctxs",
    _RETRIEVED,
    _TEXTS,
    _reader(_result_record),
    as_json(_results_json, write_json_lines),
)
PYSERINI = Format(
    "pyserini", "pyserini's JSON: question id → contexts with docid and “title\\ntext”", _RETRIEVED, _TEXTS,
    _reader(_result_record), _write_pyserini,
)  # fmt: skip
DPR_TRAINING = Format(
    "dpr-train", "DPR's training JSON: positive, negative and hard negative ctxs",
    QUESTION_PARTS | {"positives", "negatives", "hard_negatives"} | _ALL_CONTEXT_PARTS,
    frozenset({"question", "positives", "passage texts"}), _reader(training_record), as_json(_training_json),
)  # fmt: skip
NQ_OPEN = Format(
    "nq-open", "questions with answers as JSON lines", QUESTION_PARTS, frozenset({"question"}),
    _reader(_nq_record), as_json(_nq_json, write_json_lines),
)  # fmt: skip
