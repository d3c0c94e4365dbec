"""Read question sets of every format as `Question` records, with file and line in every error message."""

import io
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError
from rag.core.log import get_logger
from rag.core.types import Question
from rag.data.choices import QUESTION_FORMATS
from rag.data.files.delimited import delimiter_of, looks_like_header, named_rows, parquet_rows
from rag.data.files.huggingface import HF_PREFIX, stream_rows
from rag.data.files.question_fields import parse_answer_cell, parse_id_cell, question_from_mapping
from rag.data.files.record import good
from rag.data.files.sources import in_folder
from rag.data.files.squad import is_article, squad_paragraphs, squad_title
from rag.data.files.streams import (
    STDIN,
    first_line,
    first_mark,
    head_of,
    is_json_lines,
    json_lines,
    json_values,
    open_binary,
    read_lines,
    strip_compression,
)
from rag.data.files.tables import read_qrels
from rag.data.records import BadRecord, rows_of

_log = get_logger(__name__)

Numbered = Iterator[tuple[str, Question]]  # where it stands, for messages


def read_questions(path: str | Path, format: str = "auto") -> Iterator[Question]:
    """Stream the questions of one file, or of a data set of the Hugging Face Hub.

    | format | holds |
    |---|---|
    | `jsonl` | one record per line: this system's sample, NQ-open, KILT, BEIR queries, FiD, MDR, … |
    | `json` | a list of records (DPR training and results, HotpotQA), SQuAD 1.1 or 2.0, or id → record |
    | `csv`, `tsv` | DPR's question and `['answer', …]`; id and question; columns with a header |
    | `parquet` | one record per row, as data-set hubs keep them |
    | `text` | one question a line |
    | `hf` | a data set by name; only its data files are read, its own code is never run |

    A table's header names `question`, `answers` and perhaps `id`; several answers stand in one cell as a
    list, `["a", "b"]`, or between bars, `a|b`.

    Records of the usual sets (NQ-open, SQuAD, TriviaQA, WebQuestions, CuratedTREC, HotpotQA, 2WikiMultiHopQA,
    MuSiQue, EntityQuestions, PopQA, KILT) are known in their official shape and in that of their copies on
    the hub, see `rag.data.files.question_shapes`.

    A question without id is called `q` and its 1-based line or record number. Unlike corpora, question sets
    tolerate no bad record: a figure over an unknown part of a test set means nothing.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz), a BEIR folder or its qrels file, "-" for standard input,
            or `hf:owner/name[:config][:split]`. The split must be named unless the data set has only one.
        format: one of `QUESTION_FORMATS`, or "auto" to decide by first bytes and file name.

    Raises:
        ConfigError: unknown format, or a data set with several splits of which none is named.
        ResourceError: the hub cannot be reached.
        DataError: no such file, a malformed record or a repeated id (with its place), or no question at all.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "nq.qa.csv"
        >>> _ = path.write_text("who wrote hamlet\\t['Shakespeare', 'William Shakespeare']")
        >>> next(read_questions(path)).answers
        ('Shakespeare', 'William Shakespeare')
    """
    if format != "auto" and format not in QUESTION_FORMATS:
        known = ", ".join(QUESTION_FORMATS)
        raise ConfigError(f"unknown question format {format!r}", hint=f"use auto or one of: {known}")
    if format == "hf" or str(path).startswith(HF_PREFIX):
        name = HF_PREFIX + str(path).removeprefix(HF_PREFIX)
        rows = (  # a repository may hold SQuAD's official files: one row with all articles
            (number, item)
            for number, row in stream_rows(name)
            for item in (row["data"] if all(map(is_article, row.get("data") or [None])) else [row])
        )
        return _checked(_records(rows, name), str(path))
    place = Path(path)
    if str(path) != STDIN:
        if not place.exists():
            raise DataError(f"{path}: no such file")
        place, *judgements = question_files(place)
        if judgements:
            return _judged(place, judgements[0])
    return _read(str(place), format)


def question_files(path: str | Path) -> list[Path]:
    """The files that questions are read from: one; queries and qrels of a BEIR folder, or its qrels file, and
    of MS MARCO's.

    Raises:
        DataError: a folder that is none of BEIR's, or has the judgements of several splits.
    """
    place = Path(path)
    if place.parent.name == "qrels" and (queries := in_folder(place.parent.parent, "queries.jsonl")):
        return [queries, place]
    if not place.is_dir():
        return [place, *_judgements(place)]
    queries = _queries_in(place)
    if queries is None:
        raise DataError(
            f"{path} is a directory without queries.jsonl or queries.tsv, expected a file of questions"
        )
    judged = sorted((place / "qrels").glob("*.tsv")) or _judgements(queries)
    if len(judged) > 1:
        raise DataError(
            f"{path} has the judgements of {len(judged)} splits ({', '.join(file.stem for file in judged)})",
            hint=f"give the file of one split: {judged[0]}",
        )
    return [queries, *judged]


def is_question_folder(path: Path) -> bool:
    """Whether a folder holds the questions of a data set, as BEIR's do."""
    return _queries_in(path) is not None


def _queries_in(folder: Path) -> Path | None:
    return in_folder(folder, "queries.jsonl") or in_folder(folder, "queries.tsv")


def _judgements(queries: Path) -> list[Path]:
    """The judgements beside MS MARCO's questions: `qrels.dev.tsv` beside `queries.dev.tsv`."""
    beside = queries.with_name(queries.name.replace("queries", "qrels", 1))
    return [beside] if "queries" in queries.name and ".tsv" in queries.name and beside.is_file() else []


def _judged(queries: Path, qrels: Path) -> Iterator[Question]:
    """The questions that were judged, with the relevant passages."""
    grades = {record.id: record for record in read_qrels(qrels)}
    n_judged = 0
    for question in _read(str(queries), "auto"):
        if (record := grades.get(question.id)) is not None:
            n_judged += 1
            relevant = sorted(record.of_role("positive"), key=lambda judged: -judged.extra["grade"])
            yield replace(
                question,
                gold_passage_ids=tuple(judged.passage.id for judged in relevant),
                gold_are_alternatives=True,
                gold_grades={judged.passage.id: judged.extra["grade"] for judged in relevant},
            )
    if not n_judged:
        first = next(iter(grades), "none")
        raise DataError(
            f"{qrels} judges none of the questions of {queries}: it has {len(grades):,}, the first {first!r}",
            hint="give the judgements that belong to these questions; both name questions by the same ids",
        )


def questions_from(rows: Any) -> list[Question]:
    """Questions from Python objects: `Question` records, or mappings or a table with the fields of a file.

    Raises:
        DataError: one is something else, or has no text.

    Example:
        >>> [question.id for question in questions_from([{"question": "Who?", "answers": ["A"]}])]
        ['q0']
    """
    questions = []
    for number, row in enumerate(rows_of(rows, "questions")):
        if isinstance(row, Mapping):
            row = _question(dict(row), f"q{number}", f"question {number}")
        if not isinstance(row, Question):
            raise DataError(
                f"question {number} is {row!r:.60}, expected a Question or a mapping",
                hint='for example {"question": "…", "answers": ["…"]}',
            )
        questions.append(row)
    return questions


def draw_sample(questions: Iterable[Question], count: int, seed: int) -> list[Question]:
    """`count` questions drawn without replacement from a stream, in its order; all if there are fewer.

    Example:
        >>> [question.id for question in draw_sample((Question(str(n), "?") for n in range(9)), 3, seed=0)]
        ['1', '5', '6']
    """
    generator = random.Random(seed)
    kept: list[tuple[int, Question]] = []
    for number, question in enumerate(questions):
        if number < count:
            kept.append((number, question))
        elif (place := generator.randrange(number + 1)) < count:
            kept[place] = (number, question)
    return [question for _, question in sorted(kept, key=lambda item: item[0])]


def _checked(numbered: Numbered, path: str) -> Iterator[Question]:
    places: dict[str, str] = {}
    for place, question in numbered:
        if question.id in places:
            raise DataError(
                f"{place}: the question id {question.id!r} was used before, at {places[question.id]}",
                hint="make the ids unique, or leave them out",
            )
        places[question.id] = place
        yield question
    if not places:
        raise DataError(f"{path}: no questions in it")


def _read(path: str, format: str) -> Iterator[Question]:
    with open_binary(path) as stream:
        chosen = _detect(stream, path) if format == "auto" else format
        if chosen == "jsonl":
            numbered = _records(json_lines(stream), path, ":")
        elif chosen == "json":
            numbered = _records(json_values(stream, path), path)
        elif chosen == "parquet":
            numbered = _records(parquet_rows(path), path)
        elif chosen == "text":
            lines = read_lines(stream)
            rows = ((n, {"question": s.strip()} if isinstance(s, str) else s) for n, s in lines)
            numbered = _records((pair for pair in rows if pair[1] != {"question": ""}), path, ":")
        else:
            numbered = _records(_table(stream, path), path, ":")
        yield from _checked(numbered, path)


def _detect(stream: io.BufferedReader, path: str) -> str:
    name = strip_compression(path).lower()
    head, mark = head_of(stream), first_mark(stream)
    if head.startswith(b"PAR1"):
        return "parquet"
    if name.endswith(".txt"):
        if mark == "<":
            raise _no_markup(path)
        return "text"
    if mark == "{":
        return "jsonl" if is_json_lines(head) else "json"
    if re.match(rb"\s*\[\s*(?:[{\]]|$)", head):
        return "json"
    if "\t" in first_line(stream):
        return "tsv"
    if name.endswith(".csv"):
        return "csv"
    if name.endswith((".tsv", ".json", ".jsonl")):
        return {"v": "tsv", "n": "json", "l": "jsonl"}[name[-1]]
    if mark == "<":
        raise _no_markup(path)
    return "text"


def _no_markup(path: str) -> DataError:
    return DataError(
        f"{path} holds tags, as TREC's topics do: expected {', '.join(QUESTION_FORMATS[:-1])}",
        hint="write one question a line, or id and question parted by a tab",
    )


def _records(rows: Iterable[tuple[int, Any]], path: str, mark: str = ": record ") -> Numbered:
    """Questions of rows, and of the articles of SQuAD among them.

    Their gold passage ids are those that a corpus read from the same file has.
    """
    count = 0
    for number, row in rows:
        place = f"{path}{mark}{number}"
        if not is_article(good(row, place)):
            yield place, _question(row, f"q{number}", place)
            continue
        for paragraph in squad_paragraphs(row):
            for item in paragraph.questions:
                count += 1
                place = f"{path}: question {count}"
                try:
                    starts = [answer["answer_start"] for answer in item.get("answers", ())]
                except (AttributeError, KeyError, TypeError) as error:
                    raise DataError(
                        f"{place}: malformed SQuAD data ({error})",
                        hint='"answers" is a list of objects with "text" and "answer_start"',
                    ) from error
                if paragraph.text is None:
                    raise DataError(f"{place}: malformed SQuAD data (no context)")
                title, ids = squad_title(paragraph.title), [paragraph.id]
                context = {"title": title, "context": paragraph.text, "answer_starts": starts}
                record = {**item, **context, "gold_passage_ids": ids}
                yield place, _question(record, f"q{count}", place)


def _question(record: Any, fallback_id: str, place: str) -> Question:
    try:
        return question_from_mapping(record, fallback_id)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from error
    except (TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{place}: a field has another shape than expected ({error})") from error


def _column_names(row: list[str]) -> list[str]:
    return [re.sub(r"[\s-]+", "_", cell.strip().lower()) for cell in row]


def _has_question(row: list[str]) -> bool:
    names = set(_column_names(row))
    return bool({"question", "query"} & names) or {"anchor", "positive"} <= names


def _table(stream: io.BufferedReader, path: str) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
    is_dpr = False
    delimiter = delimiter_of(first_line(stream), _has_question)

    def columns(row: list[str]) -> tuple[list[str], bool]:
        nonlocal is_dpr
        if _has_question(row) and (len(row) > 1 or delimiter != "\t"):
            return _column_names(row), True
        if looks_like_header(row):
            raise DataError(
                f"{path}:1: no column 'question' among {', '.join(row)}",
                hint="in this line, call the column of the questions 'question', that of the answers "
                "'answers', that of ids 'id'; delete the line if the columns are id and question",
            )
        ends_in_list = row[-1].lstrip().startswith(("[", "("))
        if len(row) == 2:
            is_dpr = ends_in_list
            return ["question", "answers"] if is_dpr else ["id", "question"], False
        if len(row) == 3 and ends_in_list:
            return ["id", "question", "answers"], False
        if len(row) == 3 and all(" " in cell.strip() for cell in row):
            return ["anchor", "positive", "negative"], False  # MS MARCO's triples
        raise DataError(
            f"{path}:1: {len(row)} columns and no header",
            hint="expected: question and ['answer', …]; id and question; or a header with 'question'",
        )

    has_bars = False
    for number, row in named_rows(read_lines(stream), delimiter, columns):
        record: Any = row
        if isinstance(row, dict):
            try:
                parsed: dict[str, Any] = {
                    name: parse_answer_cell(row[name], must_be_list=is_dpr)
                    for name in ("answers", "answer")
                    if name in row
                }
                if "gold_passage_ids" in row:
                    parsed["gold_passage_ids"] = parse_id_cell(row["gold_passage_ids"])
            except ValueError as error:
                raise DataError(f"{path}:{number}: {error}") from error
            if not has_bars and (barred := _barred(row, parsed)):
                has_bars = True
                _log.warning(
                    "%s:%d: %r is read as several answers, here and below; write an answer that holds a bar "
                    'as a list: ["a|b"]', path, number, barred,
                )  # fmt: skip
            record = {key: value for key, value in (row | parsed).items() if value != ""}
        yield number, record


def _barred(row: Mapping[str, str], parsed: Mapping[str, Any]) -> str:
    """The cell whose bars part answers; "" if there is none."""
    cells = (row[name] for name, read in parsed.items() if name != "gold_passage_ids" and len(read) > 1)
    return next((cell for cell in cells if not cell.lstrip().startswith(("[", "("))), "")
