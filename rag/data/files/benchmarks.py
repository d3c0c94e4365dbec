"""KILT, HotpotQA and SQuAD files; SQuAD's articles as a corpus, as questions and as a format know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from rag.core.errors import DataError
from rag.data.files.fields import join_sentences
from rag.data.files.record import (
    QUESTION_PARTS,
    Context,
    Format,
    Record,
    as_json,
    dumps,
    json_records,
    open_text,
    write_json_lines,
)
from rag.data.files.streams import load_json, open_binary
from rag.data.split import document_of

# where a record keeps what these formats alone say
_KILT_OUTPUT, _ITEM, _VERSION = "kilt_output", "squad_item", "squad_version"


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
            named: dict[str, str] = {}
            for context in record.positives or record.contexts:
                named.setdefault(document_of(context.id), context.title)
            pages = [
                {"wikipedia_id": page} | ({"title": title} if title else {}) for page, title in named.items()
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
    frozenset({"id", "question"}), _read_kilt, as_json(_kilt_json, write_json_lines),
    predicts=True,
)  # fmt: skip
HOTPOT = Format(
    "hotpot", "HotpotQA's JSON (also 2WikiMultiHopQA, MuSiQue in its shape)",
    QUESTION_PARTS
    | {"contexts", "positives", "hard_negatives", "negatives", "passage texts", "titles", "passage fields"},
    frozenset({"id", "question", "passage texts", "titles"}), _read_hotpot, as_json(_hotpot_json),
)  # fmt: skip


class SquadParagraph(NamedTuple):
    """A paragraph of an article.

    Attributes:
        id: in a corpus: the article's title and the 0-based number.
        title: as the file writes it; see `squad_title`.
        text: None if it has none.
        questions: as they stand there.
    """

    id: str
    title: str
    text: str | None
    questions: list[Any]


def is_article(record: Any) -> bool:
    """Whether a record is an article, with the questions inside its paragraphs."""
    paragraphs = record.get("paragraphs") if isinstance(record, Mapping) else None
    return isinstance(paragraphs, list) and all(
        isinstance(item, Mapping) and ("qas" in item or "context" in item) for item in paragraphs
    )


def squad_paragraphs(article: Any) -> Iterator[SquadParagraph]:
    """The paragraphs of an article.

    Raises:
        ValueError: it is none.

    Example:
        >>> list(squad_paragraphs({"title": "Nikola_Tesla", "paragraphs": [{"context": "He", "qas": []}]}))
        [SquadParagraph(id='Nikola_Tesla-0', title='Nikola_Tesla', text='He', questions=[])]
    """
    if not (isinstance(article, Mapping) and isinstance(paragraphs := article.get("paragraphs"), list)):
        raise ValueError("expected {title, paragraphs}")
    title = str(article.get("title", ""))
    for number, paragraph in enumerate(paragraphs):
        text = paragraph.get("context") if isinstance(paragraph, Mapping) else None
        questions = paragraph.get("qas") if isinstance(paragraph, Mapping) else None
        yield SquadParagraph(
            f"{title}-{number}", title, text if isinstance(text, str) else None, list(questions or ())
        )


def squad_title(title: str) -> str:
    """The title of an article as text: without underscores and percent codes.

    Example:
        >>> squad_title("Beyonc%C3%A9_Knowles")
        'Beyoncé Knowles'
    """
    return unquote(title).replace("_", " ")


def _read_squad(path: Path) -> Iterator[Record]:
    with open_binary(path) as stream:
        whole = load_json(stream, str(path))
    count = 0
    try:
        for paragraph in (p for article in whole["data"] for p in squad_paragraphs(article)):
            context = Context(paragraph.id, paragraph.title, paragraph.text)
            for item in paragraph.questions:
                count += 1
                answers = tuple(dict.fromkeys(answer["text"] for answer in item.get("answers", ())))
                rest = {key: value for key, value in item.items() if key not in ("id", "question")}
                meta = {_ITEM: rest, _VERSION: whole.get("version", "1.1")}
                yield Record(str(item["id"]), str(item["question"]), answers, (), (context,), meta=meta)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path}: malformed SQuAD data after question {count} ({error})") from error


def _write_squad(path: Path, records: Iterable[Record]) -> None:
    """Questions that follow each other with the same paragraph share it, paragraphs with the same title an
    article."""
    version = "1.1"

    def items() -> Iterator[tuple[Context, dict[str, Any]]]:
        nonlocal version
        for record in records:
            version = record.meta.get(_VERSION, version)
            yield _squad_item(record)

    with open_text(path) as file:
        file.write('{"data": [')
        for number, (title, article) in enumerate(groupby(items(), key=lambda item: item[0].title)):
            file.write((",\n" if number else "") + f'{{"title": {dumps(title)}, "paragraphs": [\n')
            paragraphs = groupby(article, key=lambda item: (item[0].id, item[0].text))
            for place, ((_, text), asked) in enumerate(paragraphs):
                file.write((",\n" if place else "") + f'{{"context": {dumps(text)}, "qas": [\n')
                file.write(",\n".join(dumps(item) for _, item in asked) + "]}")
            file.write("]}")
        file.write(f'], "version": {dumps(version)}}}\n')


def _squad_item(record: Record) -> tuple[Context, dict[str, Any]]:
    context = record.positives[0]
    rest = record.meta.get(_ITEM)
    if rest is None:
        answers = [
            {"text": answer, "answer_start": start}
            for answer in record.answers or ()
            if (start := (context.text or "").find(answer)) >= 0
        ]
        if not answers:
            raise DataError(
                f"question {record.id!r}: no answer stands literally in its first positive passage, so there "
                "is no answer_start for SQuAD's format",
                hint="drop such questions first, or convert to dpr-train",
            )
        rest = {"answers": answers, **record.meta}
    return context, {"id": record.id, "question": record.question, **rest}


SQUAD = Format(
    "squad", "SQuAD 1.1 and 2.0", QUESTION_PARTS | {"positives", "passage ids", "passage texts", "titles"},
    frozenset({"id", "question", "positives", "passage texts"}), _read_squad, _write_squad,
)  # fmt: skip
