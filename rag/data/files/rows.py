"""The reader of records: lines, JSON, tables and Parquet; the writer of JSON lines.

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
from typing import Any

import ijson
import pyarrow as pa
import pyarrow.parquet as pq

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.data.formats import head_of, joins_lines, open_binary, record_format, records_key
from rag.data.records import BadRecord, PlacedRecord

Columns = Callable[[list[str]], list[str] | None]
"""Names the columns of a table by its first row; None if that row itself names them."""

_NumberedValues = Iterator[tuple[int, Any]]
# The last columns of MS MARCO's tables, which have no header and quote nothing.
_UNQUOTED = ("text", "question", "positive", "negative")
# Of Parquet: a row may hold the text of many paragraphs.
_BATCH_ROWS = 256


class TableRow(dict[str, str]):
    """A row of a table by the names of its columns; unlike in JSON every value is text."""


def read_rows(
    path: str, columns: Columns = lambda row: None, *, format: str = "auto", otherwise: str = "tsv"
) -> Iterator[PlacedRecord]:
    """The records of a file, a line or an element each.

    Args:
        columns: names the columns of a table whose first row does not.
        format: one of those of `record_format`, "text" (a record is a line), or "auto".
        otherwise: the format where "auto" cannot tell.

    Raises:
        DataError: no such file, or it is damaged as a whole.
    """
    with open_binary(path) as stream:
        # Files called .json may hold lines.
        if format in ("auto", "json"):
            format = record_format(head_of(stream), path) or otherwise
        if format == "markup":
            raise DataError(
                f"{path} holds tags, expected records", hint="write JSON lines, or a table"
            )
        if format == "jsonl":
            values = _lines(stream, json.loads)
        elif format == "json":
            values = _json_elements(stream, path)
        elif format == "parquet":
            values = _parquet_rows(path)
        elif format == "text":
            values = _lines(stream, lambda line: TableRow(question=line.strip()))
        else:
            values = _table_rows(stream, path, columns)
        mark = ": record " if format in ("json", "parquet") else ":"
        for number, value in values:
            yield PlacedRecord(f"{path}{mark}{number}", number, value)


def _lines(stream: io.BufferedReader, parse: Callable[[str], Any]) -> _NumberedValues:
    """The value of each line, without its end (LF or CRLF) and a byte-order mark.

    Blank lines are no records. A line that does not decode, or that is not JSON, comes as a
    `BadRecord`, and the next line follows.
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
            byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
            value = BadRecord("not valid UTF-8", f"{byte}: save the file as UTF-8")
        except (ValueError, RecursionError) as error:
            value = BadRecord("malformed JSON", str(error))
        yield number, value


def _json_elements(stream: io.BufferedReader, path: str) -> _NumberedValues:
    """The elements of a JSON list, or of the list under "data" in an object (SQuAD, TriviaQA)."""
    head = head_of(stream).lstrip()
    key = None if head.startswith(b"[") else records_key(head)
    if stream.peek(3).startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    number = 0
    try:
        elements = ijson.items(stream, f"{key}.item" if key else "item", use_float=True)
        for number, value in enumerate(elements, start=1):
            yield number, value
    except (ijson.JSONError, UnicodeDecodeError) as error:
        position = f"after record {number}" if number else "at its start"
        reason = str(error).strip("b'\"").partition("\n")[0].partition("\\n")[0]
        fault = "malformed or truncated JSON"
        remedy = "mend or fetch the file again, or save it as UTF-8"
        if "integer overflow" in reason:
            fault = "a whole number too large for 64 bits"
            remedy = "give the records as JSON lines, or the number as text"
        raise DataError(f"{path}: {fault} {position} ({reason})", hint=remedy) from error


def _table_rows(stream: io.BufferedReader, path: str, columns: Columns) -> _NumberedValues:
    """Rows of a table as mappings; a row of another length is a bad record.

    The delimiter is a tab if the first line has one, else a semicolon or a comma; quotes are those
    of CSV. A broken quote ends the reading, since what stands after it cannot be told apart from
    it.
    """
    first_line = head_of(stream).partition(b"\n")[0].rstrip(b"\r").decode(errors="replace")
    delimiter = "\t" if "\t" in first_line else max(",;", key=first_line.count)
    first_row = next(csv.reader([first_line], delimiter=delimiter), [])
    if not first_row:
        return
    names = columns(first_row)
    has_header = names is None
    if names is None:
        names = [cell.strip() for cell in first_row]
    for name in filter(None, names):
        if names.count(name) > 1:
            raise DataError(
                f"{path}: two columns are called {name!r}", hint="rename or remove one of them"
            )
    is_quoted = has_header or delimiter != "\t" or names[-1] not in _UNQUOTED
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(
        text,
        delimiter=delimiter,
        strict=True,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
    )
    number = 1
    try:
        for row in rows:
            has_many_lines = rows.line_num > number
            if has_many_lines and delimiter == "\t" and joins_lines(row):
                raise csv.Error("it would join lines")
            if has_header and any(row):
                has_header = False
            elif len(row) == len(names):
                yield number, TableRow(zip(names, row, strict=True))
            elif any(cell.strip() for cell in row):
                found = f"found {len(row)}, expected {len(names)} ({', '.join(names)})"
                yield number, BadRecord("wrong number of columns", found)
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}:{number}: a quote that is not closed, or not doubled within its field ({error})",
            hint='write " within a quoted field as "", or give the records as JSON lines',
        ) from error
    finally:
        # The file may be closed already.
        with suppress(ValueError):
            text.detach()


def _parquet_rows(path: str) -> _NumberedValues:
    try:
        batches = _record_batches(path)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable file of Parquet or Arrow: {error}") from error


def _record_batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as file:
        magic = file.read(4)
        if magic == b"PAR1":
            yield from pq.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS)
        else:
            # A file of Arrow is a stream behind its name.
            file.seek(8 if magic == b"ARRO" else 0)
            yield from pa.ipc.open_stream(file)


def refuse_bad(record: PlacedRecord) -> Any:
    """The value of a record; a bad one is raised as a DataError."""
    if isinstance(record.value, BadRecord):
        raise DataError(f"{record.location}: {record.value.reason} ({record.value.detail})")
    return record.value


def json_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; a DataError names the place of another value."""
    for record in read_rows(str(path), format="jsonl"):
        value = refuse_bad(record)
        if not isinstance(value, dict):
            raise DataError(f"{record.location}: expected an object, found {type(value).__name__}")
        yield value


def write_json_lines(
    path: Path, items: Iterable[Mapping[str, object]], *, as_list: bool = False
) -> int:
    """Write one object per line, or one JSON list with an element per line; returns their number."""
    count = 0
    separator = ",\n" if as_list else "\n"
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        if as_list:
            file.write("[\n")
        for item in items:
            if count:
                file.write(separator)
            file.write(json.dumps(item, ensure_ascii=False, allow_nan=False))
            count += 1
        if count:
            file.write("\n")
        if as_list:
            file.write("]\n")
    return count
