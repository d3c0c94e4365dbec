"""DPR results and training JSON, FiD, pyserini's JSON, NQ-open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.data.files.record import (
    Context,
    Format,
    Record,
    dumps,
    json_records,
    number,
    open_text,
    strings,
    write_json_lines,
    write_json_list,
)

__all__ = ["DPR_RESULTS", "DPR_TRAINING", "FID", "NQ_OPEN", "PYSERINI"]

_ALL_CONTEXT_PARTS = frozenset(
    {"passage ids", "passage texts", "titles", "scores", "has_answer", "passage fields"}
)
_ID_NAMES = ("id", "passage_id", "psg_id", "docid")


def _context(value: Any, place: str) -> Context:
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: a passage is not an object ({value!r:.60})")
    rest = dict(value)
    identifier = next((str(rest.pop(name)) for name in _ID_NAMES if rest.get(name) is not None), "")
    has_answer = rest.pop("has_answer", None)
    text = rest.pop("text", None)
    if text is not None and not isinstance(text, str):
        raise DataError(f"{place}: the text of passage {identifier!r} is not text")
    return Context(
        identifier,
        str(rest.pop("title", None) or ""),
        text,
        number(rest.pop("score", None), place),
        None if has_answer is None else bool(has_answer),
        rest,
    )


def _contexts(record: dict[str, Any], key: str, place: str) -> tuple[Context, ...]:
    values = record.pop(key, None) or ()
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise DataError(f"{place}: {key} is not a list")
    return tuple(_context(value, place) for value in values)


def _context_json(context: Context, id_name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {id_name: context.id} if context.id else {}
    fields |= {"title": context.title, "text": context.text or ""}
    fields |= {"score": context.score} if context.score is not None else {}
    fields |= {"has_answer": context.has_answer} if context.has_answer is not None else {}
    return {**fields, **context.extra}


def _question(record: dict[str, Any], place: str) -> tuple[str, str, tuple[str, ...] | None]:
    question = record.pop("question", None)
    if not isinstance(question, str):
        raise DataError(f"{place}: no question")
    identifier = next(
        (str(record.pop(key)) for key in ("id", "_id", "qid") if record.get(key) is not None), ""
    )
    given = [record.pop(key) for key in ("answers", "answer") if key in record]
    return identifier, question, strings(given[0], place) if given else None


def _read_results(path: Path) -> Iterator[Record]:
    for place, record in json_records(path):
        rest = dict(record)
        identifier, question, answers = _question(rest, place)
        contexts = _contexts(rest, "ctxs" if "ctxs" in rest else "contexts", place)
        yield Record(identifier, question, answers, contexts, meta=rest)


def _head(record: Record) -> dict[str, Any]:
    head: dict[str, Any] = {"id": record.id} if record.id else {}
    return {**head, "question": record.question, "answers": list(record.answers or ())}


def _results_json(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        contexts = [_context_json(context, "id") for context in record.contexts]
        yield {**_head(record), "ctxs": contexts, **record.meta}


def _read_training(path: Path) -> Iterator[Record]:
    for place, record in json_records(path):
        rest = dict(record)
        identifier, question, answers = _question(rest, place)
        positives, negatives, hard = (
            _contexts(rest, key, place) for key in ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
        )
        yield Record(identifier, question, answers, (), positives, negatives, hard, rest)


def _training_json(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    roles = (
        ("positive_ctxs", "positives"),
        ("negative_ctxs", "negatives"),
        ("hard_negative_ctxs", "hard_negatives"),
    )
    for record in records:
        contexts = {
            key: [_context_json(c, "passage_id") for c in getattr(record, role)] for key, role in roles
        }
        yield {**_head(record), **contexts, **record.meta}


def _read_pyserini(path: Path) -> Iterator[Record]:
    for record in _read_results(path):
        contexts = []
        for context in record.contexts:
            title, line_end, text = (context.text or "").partition("\n")
            split = line_end and not context.title
            contexts.append(
                Context(
                    context.id,
                    title.strip('"') if split else context.title,
                    text if split else context.text,
                    context.score,
                    context.has_answer,
                    context.extra,
                )
            )
        yield Record(record.id, record.question, record.answers, tuple(contexts), meta=record.meta)


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


_RETRIEVED = frozenset({"id", "question", "answers", "contexts", "meta"}) | _ALL_CONTEXT_PARTS
_TEXTS = frozenset({"question", "contexts", "passage texts"})

DPR_RESULTS = Format(
    "dpr-results",
    "DPR's retrieval results: a JSON list with ctxs",
    _RETRIEVED,
    _TEXTS,
    _read_results,
    lambda path, records: write_json_list(path, _results_json(records)),
)
FID = Format(
    "fid",
    "FiD's JSON lines with ctxs",
    _RETRIEVED,
    _TEXTS,
    _read_results,
    lambda path, records: write_json_lines(path, _results_json(records)),
)
PYSERINI = Format(
    "pyserini",
    "pyserini's JSON: question id → contexts with docid and “title\\ntext”",
    _RETRIEVED,
    _TEXTS,
    _read_pyserini,
    _write_pyserini,
)
DPR_TRAINING = Format(
    "dpr-train",
    "DPR's training JSON: positive, negative and hard negative ctxs",
    frozenset({"id", "question", "answers", "positives", "negatives", "hard_negatives", "meta"})
    | _ALL_CONTEXT_PARTS,
    frozenset({"question", "positives", "passage texts"}),
    _read_training,
    lambda path, records: write_json_list(path, _training_json(records)),
)
NQ_OPEN = Format(
    "nq-open",
    "questions with answers as JSON lines",
    frozenset({"id", "question", "answers", "meta"}),
    frozenset({"question"}),
    _read_results,
    lambda path, records: write_json_lines(path, _nq_json(records)),
)
