"""TREC runs and qrels, BEIR folders; ColBERT folders, which are only read."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TextIO

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, Role, head_to_json
from rag.data.files.formats import PASSAGE_PARTS, QUESTION_PARTS, Format
from rag.data.files.record import dumps, finite, json_records, open_text, text_lines, token

_ORDER: tuple[Role, ...] = ("positive", "negative", "hard_negative", "retrieved")


def _read_run(path: Path) -> Iterator[Example]:
    """Consecutive lines of a question make a record; a question that comes back later is refused.

    Passages are ordered by score, as trec_eval does; those with equal scores stay as they stand. Where there
    are ranks alone, the score of a passage is its rank, negated.
    """
    seen: set[str] = set()
    for question, lines in groupby(_run_lines(path), key=lambda line: line[1][0]):
        rows = list(lines)
        if question in seen:
            raise DataError(
                f"{rows[0][0]}: the lines of question {question!r} do not stand together",
                hint="sort the run by question first",
            )
        seen.add(question)
        scores = [finite(score, place) for place, (_, _, score, *_) in rows]
        if all(len(fields) == 3 and fields[2].isdecimal() for _, fields in rows) and all(
            first < second for first, second in pairwise(scores)
        ):
            scores = [-rank for rank in scores]
        hits = [
            Candidate(Passage(fields[1], "", ""), "retrieved", score=score)
            for (_, fields), score in zip(rows, scores, strict=True)
        ]
        best_first = sorted(hits, key=lambda hit: -(hit.score or 0.0))
        tags = rows[0][1][3:]
        yield Example(question, "", candidates=tuple(best_first), meta={"tag": tags[0]} if tags else {})


def _run_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Place of each line, and its question, passage, score (or rank alone) and, in TREC's, tag."""
    for place, line in text_lines(path):
        fields, cells = line.split(), line.split("\t")
        if len(fields) == 6:
            yield place, [fields[0], fields[2], fields[4], fields[5]]
        elif len(cells) in (3, 4):
            yield place, [*cells[:2], cells[-1]]
        else:
            raise DataError(
                f"{place}: {len(fields)} fields, a TREC run has 6, and tables of others 3 or 4 between tabs"
            )


def write_run(path: Path, examples: Iterable[Example]) -> None:
    """Write a TREC run: ranks from 1 in the order given, scores that read back exactly."""
    with open_text(path) as file:
        for example in examples:
            question = token(example.id, "question id")
            tag = token(str(example.meta.get("tag") or "rag"), "tag")
            last, seen = math.inf, set[str]()
            for rank, hit in enumerate(example.candidates, start=1):
                passage = token(hit.passage.id, "passage id")
                where = f"passage {passage!r} of question {question!r}"
                score = -float(rank) if hit.score is None else finite(hit.score, where)
                if score > last:
                    raise DataError(
                        f"question {question!r}: the score rises at rank {rank}; expected falling scores",
                        hint="distances of an HNSW index must be negated first",
                    )
                if passage in seen:
                    raise DataError(f"question {question!r}: passage {passage!r} stands twice in its ranking")
                last = score
                seen.add(passage)
                file.write(f"{question} Q0 {passage} {rank} {score!r} {tag}\n")


def read_qrels(path: Path) -> Iterator[Example]:
    """Judged passages of each question, TREC's or BEIR's; ids between tabs may hold blanks."""
    judged: dict[str, list[Candidate]] = {}
    for place, line in text_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) not in (3, 4):
            fields = line.split()
        if not line.strip() or fields[0] == "query-id":
            continue
        if len(fields) not in (3, 4):
            raise DataError(f"{place}: {len(fields)} fields, qrels have 4 (TREC) or 3 (BEIR)")
        grade = _grade(fields[-1], place)
        role: Role = "positive" if grade > 0 else "negative"
        judged.setdefault(fields[0], []).append(
            Candidate(Passage(fields[-2], "", ""), role, extra={"grade": grade})
        )
    for question, candidates in judged.items():
        yield Example(question, "", candidates=tuple(sorted(candidates, key=lambda c: c.role == "negative")))


def _grade(value: str, place: str) -> int:
    """A whole number, which tables that were written by other programs may have as 1.0."""
    try:
        if (number := float(value)).is_integer():
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise DataError(f"{place}: grade {value!r} is not a whole number")


def _grades(example: Example) -> Iterator[tuple[str, int]]:
    for candidate in example.of_role("positive", "negative"):
        yield candidate.passage.id, int(candidate.extra.get("grade", candidate.role == "positive"))


def _write_qrels(path: Path, examples: Iterable[Example]) -> None:
    with open_text(path) as file:
        for example in examples:
            question = token(example.id, "question id")
            for passage, grade in _grades(example):
                file.write(f"{question} 0 {token(passage, 'passage id')} {grade}\n")


def _one_of(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise DataError(
            f"{folder}: expected one file {pattern}, found {names}", hint="keep one split in the folder"
        )
    return files[0]


def _read_beir(path: Path) -> Iterator[Example]:
    """Questions with judgements, and the texts of the judged passages."""
    judged = {example.id: example for example in read_qrels(_one_of(path, "qrels/*.tsv"))}
    count, needed = len(judged), {p.id for example in judged.values() for p in example.passages}
    texts: dict[str, Passage] = {}
    for place, value in json_records(_one_of(path, "corpus.jsonl*")):
        if (name := str(value.get("_id"))) in needed:
            texts[name] = Passage(name, str(value.get("title") or ""), _text(value, place))
    for place, value in json_records(_one_of(path, "queries.jsonl*")):
        text, example = _text(value, place), judged.pop(str(value.get("_id")), None)
        if example is None:
            continue
        meta = dict(value.get("metadata") or {})
        answers = tuple(meta.pop("answers", None) or ())
        candidates = (replace(c, passage=texts.get(c.passage.id, c.passage)) for c in example.candidates)
        yield Example(example.id, text, answers, tuple(candidates), meta=meta)
    if judged:
        missing = f"{len(judged):,} of {count:,} questions of qrels are not in queries.jsonl"
        if len(judged) == count:
            raise DataError(f"{path}: {missing}", hint="take qrels and queries of one release")
        get_logger(__name__).warning("%s: %s, the first %r: left out", path, missing, next(iter(judged)))


def _text(value: Mapping[str, Any], place: str) -> str:
    if not isinstance(value.get("text"), str):
        raise DataError(f"{place}: no text")
    return str(value["text"])


@contextmanager
def _files(path: Path, *names: str) -> Iterator[list[TextIO]]:
    """Text files of a new folder that appears whole."""
    with atomic_path(path) as folder, ExitStack() as stack:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        yield [
            stack.enter_context(open(folder / name, "w", encoding="utf-8", newline="\n")) for name in names
        ]


def _write_beir(path: Path, examples: Iterable[Example]) -> None:
    with _files(path, "corpus.jsonl", "queries.jsonl", "qrels/test.tsv") as (corpus, queries, qrels):
        qrels.write("query-id\tcorpus-id\tscore\n")
        written: dict[str, int] = {}  # id → hash of title and text
        for example in examples:
            meta = {**head_to_json(example), **example.meta}
            meta = {
                name: value for name, value in meta.items() if name not in ("id", "question") and value != []
            }
            queries.write(dumps({"_id": example.id, "text": example.question, "metadata": meta}) + "\n")
            for role in _ORDER:
                for passage in (candidate.passage for candidate in example.of_role(role)):
                    content = hash((passage.title, passage.text))
                    known = written.get(token(passage.id, "passage id"))
                    if known not in (None, content):
                        raise DataError(
                            f"passage id {passage.id!r} stands for two different texts",
                            hint="make passage ids unique",
                        )
                    if known is None and passage.text:
                        written[passage.id] = content
                        entry = {"_id": passage.id, "title": passage.title, "text": passage.text}
                        corpus.write(dumps(entry) + "\n")
            for name, grade in _grades(example):
                qrels.write(f"{token(example.id, 'question id')}\t{token(name, 'passage id')}\t{grade}\n")


def _read_colbert(path: Path) -> Iterator[Example]:
    """Rankings of queries, and answers where `qas.jsonl` gives them."""
    passages = {
        cells[0]: Passage(cells[0], "".join(cells[2:3]), cells[1])
        for cells in _rows(path / "collection.tsv", 2)
    }
    answers: dict[str, Any] = {}
    if (path / "qas.jsonl").is_file():
        answers = {str(v["qid"]): tuple(v.get("answers") or ()) for _, v in json_records(path / "qas.jsonl")}
    hits: dict[str, list[Candidate]] = {}
    ranking = path / "ranking.tsv"
    for query, name, *rest in _rows(ranking, 3) if ranking.is_file() else ():
        if name not in passages:
            raise DataError(f"{ranking}: passage {name!r} is not in collection.tsv")
        score = finite(rest[1], f"{ranking}: query {query}") if len(rest) > 1 else None
        hits.setdefault(query, []).append(Candidate(passages[name], "retrieved", score=score))
    for query, text, *_ in _rows(path / "queries.tsv", 2):
        yield Example(query, text, answers.get(query, ()), tuple(hits.get(query, ())))


def _rows(path: Path, least: int) -> Iterator[list[str]]:
    for place, line in text_lines(path):
        cells = line.split("\t")
        if len(cells) < least:
            raise DataError(f"{place}: {len(cells)} columns, expected at least {least}")
        yield cells


TREC_RUN = Format(
    "trec-run", "TREC run: qid Q0 docid rank score tag; also read: qid docid rank score (ColBERT), qid docid "
    "rank (MS MARCO), qid docid score (Tevatron)", _read_run, write_run,
    frozenset({"id", "contexts", "passage ids", "scores"}), frozenset({"id", "contexts", "passage ids"}),
)  # fmt: skip
TREC_QRELS = Format(
    "trec-qrels", "TREC relevance judgements: qid 0 docid grade", read_qrels, _write_qrels,
    frozenset({"id", "positives", "negatives", "passage ids", "passage fields"}),
    frozenset({"id", "positives", "passage ids"}),
)  # fmt: skip
BEIR = Format(
    "beir", "BEIR folder: corpus.jsonl, queries.jsonl, qrels/", _read_beir, _write_beir,
    QUESTION_PARTS | PASSAGE_PARTS | {"positives", "negatives", "passage fields"},
    frozenset({"id", "question", "positives", "passage ids", "passage texts"}), is_folder=True,
)  # fmt: skip
COLBERT = Format(
    "colbert", "ColBERT folder: queries.tsv, collection.tsv, ranking.tsv, qas.jsonl", _read_colbert
)
