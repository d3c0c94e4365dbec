"""TREC runs and qrels, BEIR folders, ColBERT folders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.data.files.record import (
    QUESTION_PARTS,
    Context,
    Format,
    Record,
    dumps,
    finite,
    json_records,
    open_text,
    text_lines,
    token,
)


def _read_run(path: Path) -> Iterator[Record]:
    """Consecutive lines of a question make a record; a question that comes back later is refused.

    Passages are ordered by score, as trec_eval does; those with equal scores stay as they stand.
    """
    seen: set[str] = set()
    current, contexts, tag = "", list[Context](), ""
    for place, line in text_lines(path):
        fields = line.split()
        if len(fields) != 6:
            raise DataError(f"{place}: {len(fields)} fields, a TREC run has 6")
        if fields[0] != current:
            if contexts:
                yield _ranked(current, contexts, tag)
            current, contexts, tag = fields[0], [], fields[5]
            if current in seen:
                raise DataError(
                    f"{place}: question {current!r} comes back", hint="sort the run by question first"
                )
            seen.add(current)
        contexts.append(Context(fields[2], score=finite(fields[4], place)))
    if contexts:
        yield _ranked(current, contexts, tag)


def _ranked(question: str, contexts: list[Context], tag: str) -> Record:
    best_first = sorted(contexts, key=lambda context: -(context.score or 0.0))
    return Record(question, contexts=tuple(best_first), meta={"tag": tag})


def _write_run(path: Path, records: Iterable[Record]) -> None:
    """Ranks from 1 in the order given; scores are written so that they read back exactly."""
    with open_text(path) as file:
        for record in records:
            question = token(record.id, "question id")
            tag = token(str(record.meta.get("tag") or "rag"), "tag")
            last, seen = math.inf, set[str]()
            for rank, context in enumerate(record.contexts, start=1):
                passage = token(context.id, "passage id")
                where = f"passage {passage!r} of question {question!r}"
                score = -float(rank) if context.score is None else finite(context.score, where)
                if score > last:
                    raise DataError(
                        f"question {question!r}: the score rises at rank {rank}; a TREC run is read by score",
                        hint="distances of an HNSW index must be negated first",
                    )
                if passage in seen:
                    raise DataError(f"question {question!r}: passage {passage!r} stands twice in its ranking")
                last = score
                seen.add(passage)
                file.write(f"{question} Q0 {passage} {rank} {score!r} {tag}\n")


def read_qrels(path: Path) -> Iterator[Record]:
    """Judged passages of each question, TREC's or BEIR's."""
    grades: dict[str, list[Context]] = {}
    for place, line in text_lines(path):
        fields = line.split()
        if fields[0] == "query-id":
            continue
        if len(fields) not in (3, 4):
            raise DataError(f"{place}: {len(fields)} fields, qrels have 4 (TREC) or 3 (BEIR)")
        try:
            grade = int(fields[-1])
        except ValueError as error:
            raise DataError(f"{place}: grade {fields[-1]!r} is not a whole number") from error
        grades.setdefault(fields[0], []).append(Context(fields[-2], extra={"grade": grade}))
    for question, contexts in grades.items():
        yield _judged(question, contexts)


def _judged(question_id: str, contexts: Iterable[Context], **known: Any) -> Record:
    judged = list(contexts)
    positives = tuple(context for context in judged if context.extra["grade"] > 0)
    return Record(
        question_id, positives=positives, negatives=tuple(c for c in judged if c.extra["grade"] <= 0), **known
    )


def _grades(record: Record) -> Iterator[tuple[str, int]]:
    for context in record.positives:
        yield context.id, int(context.extra.get("grade", 1))
    for context in record.negatives:
        yield context.id, int(context.extra.get("grade", 0))


def _write_qrels(path: Path, records: Iterable[Record]) -> None:
    with open_text(path) as file:
        for record in records:
            question = token(record.id, "question id")
            for passage, grade in _grades(record):
                file.write(f"{question} 0 {token(passage, 'passage id')} {grade}\n")


def _one_of(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise DataError(
            f"{folder}: expected one file {pattern}, found {names}", hint="keep one split in the folder"
        )
    return found[0]


def _read_beir(path: Path) -> Iterator[Record]:
    """Questions with judgements, and the texts of the judged passages."""
    judged = {record.id: record for record in read_qrels(_one_of(path, "qrels/*.tsv"))}
    needed = {context.id for record in judged.values() for context in (*record.positives, *record.negatives)}
    texts: dict[str, Context] = {}
    for place, value in json_records(_one_of(path, "corpus.jsonl*")):
        if str(value.get("_id")) in needed:
            if not isinstance(value.get("text"), str):
                raise DataError(f"{place}: no text")
            texts[str(value["_id"])] = Context(
                str(value["_id"]), str(value.get("title") or ""), value["text"]
            )
    for place, value in json_records(_one_of(path, "queries.jsonl*")):
        identifier = str(value.get("_id"))
        if not isinstance(value.get("text"), str):
            raise DataError(f"{place}: no text")
        record = judged.get(identifier)
        if record is None:
            continue
        metadata = dict(value.get("metadata") or {})
        answers = metadata.pop("answers", None)
        contexts = [
            Context(c.id, texts[c.id].title, texts[c.id].text, extra=c.extra) if c.id in texts else c
            for c in (*record.positives, *record.negatives)
        ]
        known = {
            "question": value["text"],
            "answers": None if answers is None else tuple(answers),
            "meta": metadata,
        }
        yield _judged(identifier, contexts, **known)


@contextmanager
def _files(path: Path, *names: str) -> Iterator[list[TextIO]]:
    """Text files of a new folder that appears whole."""
    with atomic_path(path) as folder, ExitStack() as stack:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        yield [
            stack.enter_context(open(folder / name, "w", encoding="utf-8", newline="\n")) for name in names
        ]


def _write_beir(path: Path, records: Iterable[Record]) -> None:
    with _files(path, "corpus.jsonl", "queries.jsonl", "qrels/test.tsv") as (corpus, queries, qrels):
        qrels.write("query-id\tcorpus-id\tscore\n")
        written: dict[str, int] = {}
        for record in records:
            metadata = {**({"answers": list(record.answers)} if record.answers else {}), **record.meta}
            queries.write(dumps({"_id": record.id, "text": record.question, "metadata": metadata}) + "\n")
            for context in (*record.positives, *record.negatives, *record.hard_negatives, *record.contexts):
                if context.text is not None and _is_new(written, token(context.id, "passage id"), context):
                    corpus.write(
                        dumps({"_id": context.id, "title": context.title, "text": context.text}) + "\n"
                    )
            for passage, grade in _grades(record):
                qrels.write(f"{token(record.id, 'question id')}\t{token(passage, 'passage id')}\t{grade}\n")


def _is_new(written: dict[str, int], identifier: str, context: Context) -> bool:
    """Whether a passage is met for the first time.

    Raises:
        DataError: the id was used for another text.
    """
    is_new, digest = identifier not in written, hash((context.title, context.text))
    if written.setdefault(identifier, digest) != digest:
        raise DataError(
            f"passage id {identifier!r} stands for two different texts", hint="make passage ids unique"
        )
    return is_new


def _write_colbert(path: Path, records: Iterable[Record]) -> None:
    """`queries.tsv`, `collection.tsv`, `ranking.tsv`, `qas.jsonl`; and `pids.tsv`, `qids.tsv` with the ids
    as they were.

    ColBERT numbers queries and passages from 0 by their line.
    """
    names = ("queries.tsv", "collection.tsv", "ranking.tsv", "qas.jsonl", "pids.tsv", "qids.tsv")
    with _files(path, *names) as (queries, collection, ranking, answers, pid_map, qid_map):
        pids: dict[str, int] = {}
        digests: dict[str, int] = {}
        for qid, record in enumerate(records):
            queries.write(f"{qid}\t{_cell(record.question or '', record.id)}\n")
            qid_map.write(f"{qid}\t{_cell(record.id, record.id)}\n")
            answers.write(
                dumps({"qid": qid, "question": record.question, "answers": list(record.answers or ())}) + "\n"
            )
            for rank, context in enumerate(record.contexts, start=1):
                if not context.id or context.text is None:
                    raise DataError(f"question {record.id!r}: passage {rank} lacks an id or its text")
                if _is_new(digests, context.id, context):
                    pids[context.id] = len(pids)
                    pid_map.write(f"{pids[context.id]}\t{_cell(context.id, context.id)}\n")
                    cells = [_cell(context.text, context.id), _cell(context.title, context.id)]
                    collection.write("\t".join([str(pids[context.id]), *cells]) + "\n")
                score = f"\t{context.score!r}" if context.score is not None else ""
                ranking.write(f"{qid}\t{pids[context.id]}\t{rank}{score}\n")


def _cell(text: str, identifier: str) -> str:
    if any(mark in text for mark in "\t\n\r"):
        raise DataError(
            f"{identifier!r}: the text holds a tab or a line end, which ColBERT's TSV cannot express",
            hint="replace them by spaces first",
        )
    return text


def _read_colbert(path: Path) -> Iterator[Record]:
    passages = {cells[0]: cells[1:] for cells in _rows(path / "collection.tsv", 2)}
    pids = _id_map(path / "pids.tsv")
    qids = _id_map(path / "qids.tsv")
    answers: dict[str, Any] = {}
    if (path / "qas.jsonl").is_file():
        answers = {
            str(value["qid"]): tuple(value.get("answers") or ())
            for _, value in json_records(path / "qas.jsonl")
        }
    hits: dict[str, list[Context]] = {}
    if (path / "ranking.tsv").is_file():
        for cells in _rows(path / "ranking.tsv", 3):
            row = passages.get(cells[1])
            if row is None:
                raise DataError(f"{path / 'ranking.tsv'}: passage {cells[1]!r} is not in collection.tsv")
            score = finite(cells[3], f"{path / 'ranking.tsv'}: query {cells[0]}") if len(cells) > 3 else None
            title = row[1] if len(row) > 1 else ""
            hits.setdefault(cells[0], []).append(Context(pids.get(cells[1], cells[1]), title, row[0], score))
    for cells in _rows(path / "queries.tsv", 2):
        qid = cells[0]
        yield Record(qids.get(qid, qid), cells[1], answers.get(qid), tuple(hits.get(qid, ())))


def _rows(path: Path, least: int) -> Iterator[list[str]]:
    for place, line in text_lines(path):
        cells = line.split("\t")
        if len(cells) < least:
            raise DataError(f"{place}: {len(cells)} columns, expected at least {least}")
        yield cells


def _id_map(path: Path) -> Mapping[str, str]:
    return {cells[0]: cells[1] for cells in _rows(path, 2)} if path.is_file() else {}


TREC_RUN = Format(
    "trec-run", "TREC run: qid Q0 docid rank score tag",
    frozenset({"id", "contexts", "passage ids", "scores"}), frozenset({"id", "contexts", "passage ids"}),
    _read_run, _write_run,
)  # fmt: skip
TREC_QRELS = Format(
    "trec-qrels", "TREC relevance judgements: qid 0 docid grade",
    frozenset({"id", "positives", "negatives", "passage ids", "passage fields"}),
    frozenset({"id", "positives", "passage ids"}), read_qrels, _write_qrels,
)  # fmt: skip
BEIR = Format(
    "beir", "BEIR folder: corpus.jsonl, queries.jsonl, qrels/",
    QUESTION_PARTS | {"positives", "negatives", "passage ids", "passage texts", "titles", "passage fields"},
    frozenset({"id", "question", "positives", "passage ids", "passage texts"}),
    _read_beir, _write_beir, is_folder=True,
)  # fmt: skip
COLBERT = Format(
    "colbert", "ColBERT folder: queries.tsv, collection.tsv, ranking.tsv, qas.jsonl",
    frozenset({"id", "question", "answers", "contexts", "passage ids", "passage texts", "titles", "scores"}),
    frozenset({"question", "contexts", "passage ids", "passage texts"}),
    _read_colbert, _write_colbert, is_folder=True,
)  # fmt: skip
