"""KILT and HotpotQA files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.data.files.fields import join_sentences
from rag.data.files.record import QUESTION_PARTS, Context, Format, Record, as_lines, as_list, json_records

__all__ = ["HOTPOT", "KILT"]

_KILT_OUTPUT = "kilt_output"  # where a record keeps what KILT's format alone says


def _read_kilt(path: Path) -> Iterator[Record]:
    for place, value in json_records(path):
        rest = dict(value)
        try:
            identifier, question, output = str(rest.pop("id")), str(rest.pop("input")), rest.pop("output")
            answers = tuple(dict.fromkeys(o["answer"] for o in output if o.get("answer")))
            pages = [page for o in output for page in o.get("provenance") or ()]
            positives = tuple(Context(str(p["wikipedia_id"]), str(p.get("title") or "")) for p in pages)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{place}: not a KILT record ({error})") from error
        yield Record(identifier, question, answers, (), positives, meta={**rest, _KILT_OUTPUT: output})


def _kilt_json(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        meta = dict(record.meta)
        output = meta.pop(_KILT_OUTPUT, None)
        if output is None:
            answers: list[dict[str, Any]] = [{"answer": answer} for answer in record.answers or ()]
            pages = [
                {"wikipedia_id": page.id, **({"title": page.title} if page.title else {})}
                for page in record.positives or record.contexts
            ]
            output = answers or [{}]
            if pages:
                output[0] = {**output[0], "provenance": pages}
        yield {"id": record.id, "input": record.question, "output": output, **meta}


def _read_hotpot(path: Path) -> Iterator[Record]:
    for place, value in json_records(path):
        rest = dict(value)
        try:
            identifier = str(rest.pop("_id") if "_id" in rest else rest.pop("id"))
            question = str(rest.pop("question"))
            answers = (str(rest.pop("answer")),) if "answer" in rest else None
            contexts = tuple(
                Context("", str(title), join_sentences(sentences), extra={"sentences": list(sentences)})
                for title, sentences in rest.pop("context")
            )
            gold = {str(title) for title, _ in rest.get("supporting_facts") or ()} | set(
                rest.get("gold_titles") or ()
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{place}: not a HotpotQA record ({error})") from error
        yield Record(
            identifier,
            question,
            answers,
            contexts,
            tuple(c for c in contexts if c.title in gold),
            (),
            tuple(c for c in contexts if c.title not in gold) if gold else (),
            meta=rest,
        )


def _hotpot_json(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        if len(record.answers or ()) > 1:
            raise DataError(
                f"question {record.id!r} has {len(record.answers or ())} answers, HotpotQA's format "
                "holds one",
                hint="convert to dpr-train or nq-open, or keep one answer a question",
            )
        contexts = record.contexts or (*record.positives, *record.hard_negatives, *record.negatives)
        answer = {"answer": record.answers[0]} if record.answers else {}
        context = [[c.title, list(c.extra.get("sentences") or [c.text or ""])] for c in contexts]
        yield {"_id": record.id, "question": record.question, **answer, **record.meta, "context": context}


KILT = Format(
    "kilt", "KILT task or prediction files (JSON lines)",
    frozenset({"id", "question", "answers", "positives", "contexts", "passage ids", "titles", "meta"}),
    frozenset({"id", "question"}), _read_kilt, as_lines(_kilt_json),
)  # fmt: skip
HOTPOT = Format(
    "hotpot", "HotpotQA's JSON (also 2WikiMultiHopQA, MuSiQue in its shape)",
    QUESTION_PARTS
    | {"contexts", "positives", "hard_negatives", "negatives", "passage texts", "titles", "passage fields"},
    frozenset({"id", "question", "passage texts", "titles"}), _read_hotpot, as_list(_hotpot_json),
)  # fmt: skip
