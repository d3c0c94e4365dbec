"""Read question sets of every format as `Question` records, with file and line in every error
message.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.core.types import Question
from rag.data.files import rows as files
from rag.data.files.named import Grades, is_named, named_questions
from rag.data.files.question_sets import question_of, squad_paragraphs, table_columns
from rag.data.formats import find_in_folder
from rag.data.records import PlacedRecord, rows_of

_QRELS = ("query-id", "corpus-id", "score")  # the columns of BEIR's judgements


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
        path: the file (also .gz, .bz2, .zst, .xz), a BEIR folder or its qrels file,
            `irds:beir/scifact/test`, or `hf:owner/name[[:config]:split]`, whose split must be named
            unless it is the only one.

    Raises:
        ConfigError: a data set with several splits of which none is named.
        DataError: no such file, a malformed record or a repeated id (with its place), or no
            question at all.
    """
    name = str(path)
    if is_named(name):
        named, grades = named_questions(name)
        return (
            _judged(_questions(named, name), grades, name, name)
            if grades
            else _questions(named, name)
        )
    place, *judgements = question_files(path)
    rows = files.read_rows(str(place), partial(table_columns, path=str(place)), otherwise="text")
    questions = _questions(rows, str(place))
    return (
        _judged(questions, read_qrels(judgements[0]), place, judgements[0])
        if judgements
        else questions
    )


def question_files(path: str | Path) -> list[Path]:
    """The files that questions are read from: one; queries and qrels of a BEIR folder, or of its
    qrels file.

    Raises:
        DataError: no such file, a folder that is none of BEIR's, or has the judgements of several
            splits.
    """
    place = Path(path)
    if not place.exists():
        raise DataError(f"{path}: no such file", hint="check the path")
    if place.parent.name == "qrels" and (
        queries := find_in_folder(place.parent.parent, "queries.jsonl")
    ):
        return [queries, place]
    if not place.is_dir():
        return [place]
    if (queries := find_in_folder(place, "queries.jsonl")) is None:
        raise DataError(
            f"{path} is a directory without queries.jsonl, expected a file of questions"
        )
    judged = sorted((place / "qrels").glob("*.tsv"))
    if len(judged) > 1:
        splits = ", ".join(file.stem for file in judged)
        raise DataError(
            f"{path} has the judgements of {len(judged)} splits ({splits})",
            hint=f"choose one: {judged[-1]}",
        )
    return [queries, *judged]


def _judged(
    questions: Iterable[Question], grades: Grades, queries: Any, qrels: Any
) -> Iterator[Question]:
    """The questions that were judged, with the relevant passages, the highest grades first."""
    is_any_judged = False
    for question in questions:
        if question.id in grades:
            is_any_judged = True
            relevant = {id: grade for id, grade in grades[question.id].items() if grade > 0}
            ranked = dict(sorted(relevant.items(), key=lambda pair: -pair[1]))
            yield replace(
                question,
                gold_passage_ids=tuple(ranked),
                gold_grades=ranked,
                gold_are_alternatives=True,
            )
    if not is_any_judged:
        raise DataError(
            f"{qrels} judges none of the questions of {queries}: the first is {next(iter(grades), 'none')!r}",
            hint="give the judgements that belong to these questions; both name questions by the same ids",
        )


def read_qrels(path: Path) -> Grades:
    """The grade of each judged passage of each question, from a table of BEIR."""
    grades: Grades = {}
    for place, _, row in files.read_rows(str(path), format="tsv"):
        try:
            question, passage, grade = (files.refuse_bad(row, place)[name] for name in _QRELS)
            grades.setdefault(question, {})[passage] = int(grade.removesuffix(".0"))
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{place}: {row!r:.50}, expected {', '.join(_QRELS)}, a whole number"
            ) from error
    return grades


def questions_from(rows: Any) -> list[Question]:
    """Questions from Python objects: `Question` records, or mappings or a table with the fields of
    a file; a DataError if one is something else, or has no text."""
    return [
        row if isinstance(row, Question) else _question(row, f"q{number}", f"question {number}")
        for number, row in enumerate(rows_of(rows, "questions"))
    ]


def draw_sample(questions: Iterable[Question], count: int, seed: int) -> list[Question]:
    """`count` questions drawn without replacement from a stream, in its order; all if there are
    fewer.
    """
    generator = random.Random(seed)
    drawn: list[tuple[int, Question]] = []
    for number, question in enumerate(questions):
        if number < count:
            drawn.append((number, question))
        elif (place := generator.randrange(number + 1)) < count:
            drawn[place] = (number, question)
    return [question for _, question in sorted(drawn, key=lambda item: item[0])]


def _questions(rows: Iterable[PlacedRecord], path: str) -> Iterator[Question]:
    """Questions of rows, and of the articles of SQuAD among them; their ids are unique."""
    places: dict[str, str] = {}
    for place, number, row in _squad_rows(rows, path):
        question = _question(row, f"q{number}", place)
        if question.id in places:
            raise DataError(
                f"{place}: the question id {question.id!r} was used before, at {places[question.id]}",
                hint="make the ids unique, or leave them out",
            )
        places[question.id] = place
        yield question
    if not places:
        raise DataError(f"{path}: no questions in it")


def _squad_rows(rows: Iterable[PlacedRecord], path: str) -> Iterator[PlacedRecord]:
    """The rows, with the questions of SQuAD's articles in place of these.

    Their gold passage ids are those that a corpus read from the same file has.
    """
    count = 0
    for place, number, row in rows:
        paragraphs = squad_paragraphs(files.refuse_bad(row, place))
        if paragraphs is None:
            yield place, number, row
        for paragraph in paragraphs or ():
            evidence = {name: paragraph[name] for name in ("title", "context")}
            evidence["gold_passage_ids"] = [paragraph["id"]]
            for item in paragraph["qas"]:
                count += 1
                if not isinstance(paragraph["context"], str) or not isinstance(item, Mapping):
                    raise DataError(f"{path}: question {count}: no context, or no object")
                yield f"{path}: question {count}", count, {**item, **evidence}


def _question(record: Any, fallback_id: str, place: str) -> Question:
    try:
        return question_of(record, fallback_id)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from error
    except (TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{place}: a field has another shape than expected ({error})") from error
