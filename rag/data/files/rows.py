"""The one reader of records: lines, JSON, tables and Parquet.

Lines and the elements of JSON lists come one at a time: a file of any length is read in the memory
of its largest element.
"""

import codecs
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import ijson
import pyarrow as pa
import pyarrow.parquet as pq

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.data.formats import head_of, open_binary, record_format, records_key
from rag.data.records import BadRecord, PlacedRecord

Values = Iterator[tuple[int, Any]]  # records without their places
Columns = Callable[
    [list[str]], list[str] | None
]  # of a first row: names for the columns, if it has none

_UNQUOTED = (
    "text",
    "question",
    "positive",
    "negative",
)  # last columns of MS MARCO's, without a header
_BATCH_ROWS = 256  # of Parquet: a row may hold the text of many paragraphs


class TableRow(dict[str, str]):
    """A row of a table by the names of its columns; unlike in JSON every value is text."""


def read_rows(
    path: str, columns: Columns = lambda row: None, *, format: str = "auto", otherwise: str = "tsv"
) -> Iterator[PlacedRecord]:
    """The records of a file, a line or an element each.

    Args:
        columns: names the columns of a table whose first row, which it gets, does not.
        format: one of those of `record_format`, "text" (a record is a line), or "auto".
        otherwise: the format where "auto" cannot tell.

    Raises:
        DataError: no such file, or it is damaged as a whole.
    """
    with open_binary(path) as stream:
        if format in ("auto", "json"):  # files called .json may hold lines
            format = record_format(head_of(stream), path) or otherwise
        if format == "markup":
            raise DataError(
                f"{path} holds tags, expected records", hint="write JSON lines, or a table"
            )
        if format == "jsonl":
            rows = _lines(stream, json.loads)
        elif format == "json":
            rows = _json_values(stream, path)
        elif format == "parquet":
            rows = _parquet_rows(path)
        elif format == "text":
            rows = _lines(stream, lambda line: TableRow(question=line.strip()))
        else:
            rows = _table_rows(stream, path, columns)
        mark = ": record " if format in ("json", "parquet") else ":"
        for number, row in rows:
            yield f"{path}{mark}{number}", number, row


def _lines(stream: io.BufferedReader, parse: Callable[[str], Any]) -> Values:
    """The value of each line, without its end (LF or CRLF) and a byte-order mark; blank ones are no
    records.

    A line that does not decode, or that is not JSON, comes as a `BadRecord`, and the next line
    follows.
    """
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            text = line.rstrip(b"\r\n").decode()
            if not text or text.isspace():
                continue
            value = parse(text)
        except UnicodeDecodeError as error:
            detail = f"byte 0x{error.object[error.start]:02x} at offset {error.start}: save the file as UTF-8"
            value = BadRecord("not valid UTF-8", detail)
        except (ValueError, RecursionError) as error:
            value = BadRecord("malformed JSON", str(error))
        yield number, value


def _json_values(stream: io.BufferedReader, source: str) -> Values:
    """The records of a JSON list, or of the list under "data" in an object (SQuAD's; TriviaQA's
    "Data").
    """
    number, head = 0, head_of(stream).lstrip()
    key = None if head.startswith(b"[") else records_key(head)
    if stream.peek(3).startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    prefix = f"{key}.item" if key else "item"
    try:
        for number, value in enumerate(ijson.items(stream, prefix, use_float=True), start=1):
            yield number, value
    except (ijson.JSONError, UnicodeDecodeError) as error:
        place = f"after record {number}" if number else "at its start"
        reason = str(error).strip("b'\"").partition("\n")[0].partition("\\n")[0]
        raise DataError(
            f"{source}: malformed or truncated JSON {place} ({reason})",
            hint="mend or fetch the file again, or save it as UTF-8",
        ) from error


def _table_rows(stream: io.BufferedReader, source: str, columns: Columns) -> Values:
    """Rows of a table as mappings; a row of another length is a bad record.

    The delimiter is a tab if the first line has one, else a semicolon or a comma; quotes are those
    of CSV. A broken quote ends the reading, since what stands after it cannot be told apart from
    it.
    """
    first = head_of(stream).partition(b"\n")[0].rstrip(b"\r").decode(errors="replace")
    delimiter = "\t" if "\t" in first else max(",;", key=first.count)
    cells = next(csv.reader([first], delimiter=delimiter), [])
    if not cells:
        return
    headless = columns(cells)
    names, has_header = headless or [cell.strip() for cell in cells], headless is None
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise DataError(
            f"{source}: two columns are called {twice!r}", hint="rename or remove one of them"
        )
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    is_quoted = has_header or delimiter != "\t" or names[-1] not in _UNQUOTED
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    rows = csv.reader(text, delimiter=delimiter, strict=True, quoting=quoting)
    last = 0
    try:
        for row in rows:
            number, last = last + 1, rows.line_num
            if has_header and any(row):
                has_header = False
            elif len(row) == len(names):
                yield number, TableRow(zip(names, row, strict=True))
            elif any(cell.strip() for cell in row):
                found = f"found {len(row)}, expected {len(names)} ({', '.join(names)})"
                yield number, BadRecord("wrong number of columns", found)
    except csv.Error as error:
        raise DataError(
            f"{source}:{last + 1}: a quote that is not closed, or not doubled within its field ({error})",
            hint='write " within a quoted field as "", or give the records as JSON lines',
        ) from error
    finally:
        with suppress(ValueError):  # the file may be closed already
            text.detach()


def _parquet_rows(path: str) -> Values:
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            batches = file.iter_batches(batch_size=_BATCH_ROWS)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def refuse_bad(value: Any, place: str) -> Any:
    """The value; a bad record is raised as a DataError."""
    if isinstance(value, BadRecord):
        raise DataError(f"{place}: {value.reason} ({value.detail})")
    return value


def json_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; a DataError names the place of another value."""
    for place, _, value in read_rows(str(path), format="jsonl"):
        if not isinstance(refuse_bad(value, place), dict):
            raise DataError(f"{place}: expected an object, found {type(value).__name__}")
        yield value


def write_json_lines(
    path: Path, items: Iterable[Mapping[str, Any]], *, listed: bool = False
) -> int:
    """Write one object per line, with `listed` as one JSON list; returns their number."""
    count, separator = 0, ",\n" if listed else "\n"
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        file.write("[\n" if listed else "")
        for item in items:
            file.write(
                (separator if count else "") + json.dumps(item, ensure_ascii=False, allow_nan=False)
            )
            count += 1
        file.write(("\n" if count else "") + ("]\n" if listed else ""))
    return count
