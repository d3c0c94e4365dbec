"""Read question sets of every format as `Question` records, with file and line in every error
message.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from rag.core.errors import DataError
from rag.core.files import fingerprint, sha256_file
from rag.core.types import Question
from rag.data.files.fields import squad_paragraphs
from rag.data.files.named import IRDS_PREFIX, Grades, is_named, named_questions
from rag.data.files.question_sets import question_of, table_columns
from rag.data.files.rows import read_rows, refuse_bad
from rag.data.formats import find_in_folder, strip_compression
from rag.data.records import PlacedRecord, rows_of
from rag.data.text import REGEX_PROFILE

Drawn = TypeVar("Drawn")
_TREC_QRELS = ("query-id", "iteration", "corpus-id", "score")


def read_questions(path: str | Path) -> Iterator[Question]:
    """Stream the questions of one file, or of a data set by name; first bytes and file name tell
    the format.

    | format | holds |
    |---|---|
    | `jsonl` | one record per line: this system's sample, NQ-open, KILT, BEIR queries, FiD, … |
    | `json` | a list of records (DPR training and results, HotpotQA), SQuAD 1.1 or 2.0 |
    | `csv`, `tsv` | DPR's question and `['answer', …]`; id and question; columns with a header |
    | `parquet` | one record per row, as data-set hubs keep them |
    | `text` | one question a line |

    A table's header names `question`, `answers` and perhaps `id`; several answers stand in one cell
    as a list, `["a", "b"]`. Records of the published sets are known in their official shape and in
    that of their copies on the hub, see `rag.data.files.question_sets`. A question without id is
    called `q` and its 1-based line or record number. Unlike corpora, question sets tolerate no bad
    record: a figure over an unknown part of a test set means nothing.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz), a BEIR folder or its qrels file, TREC's qrels
            beside their queries (see `question_files`), `irds:beir/scifact/test`, or
            `hf:owner/name[[:config]:split]`, whose split must be named unless it is the only one.

    Raises:
        ConfigError: a data set with several splits of which none is named.
        DataError: no such file, a malformed record or a repeated id (with its place), or no
            question at all.
    """
    name = str(path)
    if is_named(name):
        records, grades = named_questions(name)
        questions = _questions(records, name)
        is_beir = name.startswith(f"{IRDS_PREFIX}beir/")
        if not grades:
            return questions
        return _judged(questions, grades, name, name, is_beir)
    file, *judgements = question_files(path)
    columns = partial(table_columns, path=str(file))
    questions = _questions(read_rows(str(file), columns, otherwise="text"), str(file))
    if not judgements:
        return questions
    [qrels] = judgements
    is_beir = qrels.parent != file.parent
    return _judged(questions, _read_qrels(qrels), str(file), str(qrels), is_beir)


def question_files(path: str | Path) -> list[Path]:
    """The files that questions are read from: a single file; queries and qrels of a BEIR folder or
    of its qrels file; or a file with "qrels" in its name, as TREC and MS MARCO have it, and the
    table or JSON lines beside it whose name has "queries" instead (`qrels.dev.tsv` and
    `queries.dev.tsv`).

    Raises:
        DataError: no such file, a folder that is none of BEIR's or has the judgements of several
            splits, or judgements without their queries.
    """
    file = Path(path)
    if not file.exists():
        raise DataError(f"{path}: no such file", hint="check the path")
    if file.parent.name == "qrels":
        queries = find_in_folder(file.parent.parent, "queries.jsonl")
        if queries is not None:
            return [queries, file]
    if not file.is_dir():
        return [_queries_beside(file), file] if "qrels" in file.name else [file]
    queries = find_in_folder(file, "queries.jsonl")
    if queries is None:
        raise DataError(
            f"{path} is a directory without queries.jsonl, expected a file of questions"
        )
    judgements = sorted((file / "qrels").glob("*.tsv"))
    if len(judgements) > 1:
        splits = ", ".join(qrels.stem for qrels in judgements)
        raise DataError(
            f"{path} has the judgements of {len(judgements)} splits ({splits})",
            hint=f"choose one: {judgements[-1]}",
        )
    return [queries, *judgements]


def questions_digest(path: str | Path) -> str:
    """The checksum of the files that questions are read from; the name of a data set by name."""
    if is_named(path):
        return str(path)
    digests = [sha256_file(file) for file in question_files(path)]
    return digests[0] if len(digests) == 1 else fingerprint(digests)


def _queries_beside(qrels: Path) -> Path:
    """The questions that a file of judgements is of."""
    name = Path(strip_compression(qrels.name)).stem.replace("qrels", "queries")
    for suffix in (".tsv", ".jsonl"):
        queries = find_in_folder(qrels.parent, f"{name}{suffix}")
        if queries is not None:
            return queries
    raise DataError(
        f"{qrels} judges questions, and {name}.tsv is not there",
        hint="put their ids and texts beside it, in a table of that name or as JSON lines",
    )


def _judged(
    questions: Iterable[Question], grades: Grades, queries: str, qrels: str, is_beir: bool
) -> Iterator[Question]:
    """The questions that were judged, with the relevant passages, the highest grades first."""
    is_any_judged = False
    for question in questions:
        if question.id not in grades:
            continue
        is_any_judged = True
        judged = sorted(grades[question.id].items(), key=lambda pair: -pair[1])
        relevant = {passage_id: grade for passage_id, grade in judged if grade > 0}
        yield replace(
            question,
            gold_passage_ids=tuple(relevant),
            gold_grades=relevant,
            gold_are_alternatives=True,
            is_left_out=is_beir,
        )
    if not is_any_judged:
        raise DataError(
            f"{qrels} judges none of the questions of {queries}: the first is {next(iter(grades), 'none')!r}",
            hint="give the judgements that belong to these questions; both name questions by the same ids",
        )


def _read_qrels(path: Path) -> Grades:
    """The judgements in a table of BEIR, or in the four columns of TREC."""
    grades: Grades = {}
    columns = _TREC_QRELS
    for record in read_rows(str(path), format="text"):
        line = refuse_bad(record)["question"]
        cells = line.split("\t") if "\t" in line else line.split()
        if "corpus-id" in cells:
            columns = tuple(cells)
            continue
        try:
            row = dict(zip(columns, cells, strict=True))
            grade = int(row["score"].removesuffix(".0"))
            first_grade = grades.setdefault(row["query-id"], {}).setdefault(row["corpus-id"], grade)
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{record.location}: {line!r:.50}, expected the columns {', '.join(columns)}, the last a "
                "whole number",
                hint="give TREC's four columns, or BEIR's three below a line query-id, corpus-id, score",
            ) from error
        if first_grade != grade:
            raise DataError(
                f"{record.location}: {line!r:.50} judges a passage again, with another grade than {first_grade}",
                hint="keep the judgement that is right; trec_eval refuses such a file, too",
            )
    return grades


def questions_from(rows: object) -> list[Question]:
    """Questions from Python objects: `Question` records, or mappings or a table with the fields of
    a file; a DataError if a row is something else, or has no text."""
    questions = []
    for number, row in enumerate(rows_of(rows, "questions")):
        if not isinstance(row, Question):
            row = _question(row, f"q{number}", f"question {number}")
        questions.append(row)
    return questions


def draw_sample(questions: Iterable[Drawn], count: int, seed: int) -> list[Drawn]:
    """`count` questions drawn without replacement from a stream, in its order; all if there are
    fewer.
    """
    generator = random.Random(seed)
    drawn: list[tuple[int, Drawn]] = []
    for number, question in enumerate(questions):
        if number < count:
            drawn.append((number, question))
            continue
        replaced = generator.randrange(number + 1)
        if replaced < count:
            drawn[replaced] = (number, question)
    return [question for _, question in sorted(drawn, key=lambda item: item[0])]


def _questions(records: Iterable[PlacedRecord], path: str) -> Iterator[Question]:
    """Questions of records, and of the articles of SQuAD among them; their ids are unique."""
    locations: dict[str, str] = {}
    # The answers of this set are regular expressions, which its records do not say.
    are_patterns = "curatedtrec" in path.lower()
    for location, number, record in _without_articles(records, path):
        question = _question(record, f"q{number}", location)
        if are_patterns:
            question = replace(question, answer_profile=REGEX_PROFILE)
        if question.id in locations:
            raise DataError(
                f"{location}: the question id {question.id!r} was used before, at {locations[question.id]}",
                hint="make the ids unique, or leave them out",
            )
        locations[question.id] = location
        yield question
    if not locations:
        raise DataError(f"{path}: no questions in it")


def _without_articles(records: Iterable[PlacedRecord], path: str) -> Iterator[PlacedRecord]:
    """The records, with the questions of SQuAD's articles in place of these.

    Their gold passage ids are those that a corpus read from the same file has.
    """
    count = 0
    for record in records:
        paragraphs = squad_paragraphs(refuse_bad(record))
        if paragraphs is None:
            yield record
            continue
        for paragraph in paragraphs:
            evidence = {name: paragraph[name] for name in ("title", "context")}
            evidence["gold_passage_ids"] = [paragraph["id"]]
            for question in paragraph["qas"]:
                count += 1
                location = f"{path}: question {count}"
                if not isinstance(paragraph["context"], str) or not isinstance(question, Mapping):
                    raise DataError(f"{location}: no context, or no object")
                yield PlacedRecord(location, count, {**question, **evidence})


def _question(record: object, fallback_id: str, location: str) -> Question:
    try:
        return question_of(record, fallback_id)
    except ValueError as error:
        raise DataError(f"{location}: {error}") from error
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(f"{location}: a field has another shape than expected ({error})") from error
