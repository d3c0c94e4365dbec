"""Question sets: every format to one `Question`, with file and line in every complaint."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError
from rag.core.types import Question
from rag.data.files.delimited import parquet_rows, read_rows
from rag.data.files.huggingface import HF_PREFIX, hub_rows, is_article
from rag.data.files.json_file import squad_paragraph_id, squad_title
from rag.data.files.json_stream import first_mark, iter_json_array, json_lines, load_json
from rag.data.files.question_fields import check_text, parse_answer_cell, question_from_mapping
from rag.data.files.sources import is_json_record
from rag.data.files.streams import STDIN, open_binary, read_lines, strip_compression
from rag.data.records import BadRecord

__all__ = ["QUESTION_FORMATS", "draw_sample", "read_questions"]

QUESTION_FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "text", "hf")
_HEAD_BYTES = 1 << 16
Numbered = Iterator[tuple[str, Question]]  # where it stands, for messages


def read_questions(path: str | Path, format: str = "auto", *, encoding: str = "utf-8") -> Iterator[Question]:
    """Stream the questions of one file, or of a data set of the Hugging Face Hub.

    | format | holds |
    |---|---|
    | `jsonl` | one record a line: this system's sample, NQ-open, KILT, BEIR queries, FiD, MDR, … |
    | `json` | a list of records (DPR training and results, HotpotQA), SQuAD 1.1 or 2.0, or id → record |
    | `csv`, `tsv` | DPR's question and `['answer', …]`; id and question; any columns with a header |
    | `parquet` | one record a row, as data-set hubs keep them |
    | `text` | one question a line |
    | `hf` | a data set by name; only its data files are read, its own code is never run |

    Records of the usual sets (NQ-open, SQuAD, TriviaQA, WebQuestions, CuratedTREC, HotpotQA, 2WikiMultiHopQA,
    MuSiQue, EntityQuestions, PopQA, KILT) are known in their official shape and in that of their copies on
    the hub, see `rag.data.files.question_shapes`.

    A question without id is called `q` and its 1-based line or record number. Unlike corpora, question sets
    tolerate no bad record: a figure over an unknown part of a test set means nothing.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz), a BEIR folder, "-" for standard input, or
            `hf:owner/name[:config][:split]`. The split must be named unless the data set has only one.
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
        return _checked(_hub(HF_PREFIX + str(path).removeprefix(HF_PREFIX)), str(path))
    place = Path(path)
    if str(path) != STDIN:
        if not place.exists():
            raise DataError(f"{path}: no such file")
        if place.is_dir():
            inner = [place / f"queries.jsonl{suffix}" for suffix in ("", ".gz", ".bz2", ".zst")]
            found = next((file for file in inner if file.is_file()), None)
            if found is None:
                raise DataError(f"{path} is a directory without queries.jsonl, expected a file of questions")
            place = found
    return _read(str(place), format, encoding)


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


def _read(path: str, format: str, encoding: str) -> Iterator[Question]:
    with open_binary(path) as stream:
        chosen = _detect(stream, path) if format == "auto" else format
        if chosen == "jsonl":
            lines = json_lines(stream, encoding=encoding)
            good = ((number, _good(record, f"{path}:{number}")) for number, record in lines)
            numbered = _records(good, path, "{path}:{number}")
        elif chosen == "json":
            numbered = _json_file(stream, path, encoding)
        elif chosen == "parquet":
            numbered = _records(parquet_rows(path), path)
        elif chosen == "text":
            numbered = _plain_lines(stream, path, encoding)
        else:
            numbered = _table(stream, path, encoding, "\t" if chosen == "tsv" else ",")
        yield from _checked(numbered, path)


def _hub(name: str) -> Numbered:
    for number, row in hub_rows(name):
        if is_article(row):
            yield from _squad([row], f"{name}: article {number}")
        else:
            yield from _records([(number, row)], name)


def _detect(stream: io.BufferedReader, path: str) -> str:
    name = strip_compression(path).lower()
    head = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"PAR1"):
        return "parquet"
    first, line_end, _ = head.partition(b"\n")
    if name.endswith(".txt"):
        return "text"
    if head.startswith(b"{"):
        return "jsonl" if is_json_record(first, is_whole=bool(line_end)) else "json"
    if re.match(rb"\[\s*(?:[{\]]|$)", head):
        return "json"
    if b"\t" in first:
        return "tsv"
    if name.endswith(".csv"):
        return "csv"
    if name.endswith((".tsv", ".json", ".jsonl")):
        return {"v": "tsv", "n": "json", "l": "jsonl"}[name[-1]]
    return "text"


def _json_file(stream: io.BufferedReader, path: str, encoding: str) -> Numbered:
    if first_mark(stream) == "[":
        yield from _records(iter_json_array(stream, path, encoding=encoding), path)
        return
    value = load_json(stream, path, encoding=encoding)
    articles = value.get("data") if isinstance(value, dict) else None
    if isinstance(articles, list):
        if articles and isinstance(articles[0], dict) and "paragraphs" in articles[0]:
            yield from _squad(articles, path)
        else:
            yield from _records(enumerate(articles, start=1), path)
    elif isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
        keyed = ({"id": key, **item} for key, item in value.items())
        yield from _records(enumerate(keyed, start=1), path)
    else:
        yield from _records([(1, value)], path)


def _records(
    records: Iterable[tuple[int, Any]], path: str, places: str = "{path}: record {number}"
) -> Numbered:
    for number, record in records:
        place = places.format(path=path, number=number)
        try:
            yield place, question_from_mapping(record, f"q{number}")
        except ValueError as error:
            raise DataError(f"{place}: {error}") from error


def _squad(articles: list[Any], path: str) -> Numbered:
    """SQuAD 1.1 and 2.0; gold passage ids are those that a corpus read from the same file has."""
    number = 0
    for article in articles:
        try:
            title, paragraphs = str(article["title"]), list(article["paragraphs"])
            for index, paragraph in enumerate(paragraphs):
                for item in paragraph["qas"]:
                    number += 1
                    extra = {
                        "title": squad_title(title),
                        "context": paragraph["context"],
                        "answer_starts": [answer["answer_start"] for answer in item.get("answers", ())],
                        "gold_passage_ids": [squad_paragraph_id(title, index)],
                    }
                    yield f"{path}: question {number}", question_from_mapping({**item, **extra}, f"q{number}")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            found = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}: malformed SQuAD data after question {number}: {found}") from error


def _plain_lines(stream: io.BufferedReader, path: str, encoding: str) -> Numbered:
    for number, line in read_lines(stream, encoding=encoding):
        place = f"{path}:{number}"
        if text := _good(line, place).strip():
            try:
                check_text(text)
            except ValueError as error:
                raise DataError(f"{place}: {error}") from error
            yield place, Question(f"q{number}", text)


def _table(stream: io.BufferedReader, path: str, encoding: str, delimiter: str) -> Numbered:
    columns: list[str] | None = None
    for number, row in read_rows(read_lines(stream, encoding=encoding), delimiter):
        place = f"{path}:{number}"
        if isinstance(row, BadRecord):
            raise DataError(f"{place}: {row.reason} ({row.detail})")
        if columns is None:
            names = [cell.strip().lower() for cell in row]
            if set(names) & {"question", "query"} and (len(names) > 1 or delimiter == ","):
                columns = names
                continue
            columns = _columns(row, place)
        if len(row) != len(columns):
            raise DataError(f"{place}: {len(row)} columns, expected {len(columns)} ({', '.join(columns)})")
        record: dict[str, Any] = dict(zip(columns, row, strict=True))
        is_dpr = columns == ["question", "answers"]
        try:
            for name in {"answers", "answer"} & record.keys():
                record[name] = parse_answer_cell(record[name], must_be_list=is_dpr)
            given = {key: value for key, value in record.items() if value != ""}
            yield place, question_from_mapping(given, f"q{number}")
        except ValueError as error:
            raise DataError(f"{place}: {error}") from error


def _columns(row: list[str], place: str) -> list[str]:
    """Columns of a table without header, by its first row."""
    if len(row) == 2:
        return ["question", "answers"] if row[1].lstrip().startswith(("[", "(")) else ["id", "question"]
    if len(row) == 3 and row[2].lstrip().startswith(("[", "(")):
        return ["id", "question", "answers"]
    raise DataError(
        f"{place}: {len(row)} columns and no header",
        hint="expected: question and ['answer', …]; id and question; or a header with a column 'question'",
    )


def _good(line: Any, place: str) -> Any:
    if isinstance(line, BadRecord):
        raise DataError(f"{place}: {line.reason} ({line.detail})")
    return line
