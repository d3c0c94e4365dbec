"""Tables, row by row: TSV and CSV files, Parquet."""

import csv
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rag.core.errors import ConfigError, DataError
from rag.data.files.streams import STDIN
from rag.data.records import BadRecord

_MAX_ROW_LINES = 1_000
_BATCH_ROWS = 256  # a row may hold the text of many paragraphs
_DELIMITERS = "\t,;"
_COLUMN_NAME = re.compile(r"[^\W\d]\w*(?:[ ._/-]\w+){0,2}")


def plain_name(name: str) -> str:
    """The letters and digits of a column's name, without case.

    Example:
        >>> plain_name("Doc-ID"), plain_name("_id")
        ('docid', 'id')
    """
    return "".join(filter(str.isalnum, name.casefold()))


def looks_like_header(row: Sequence[str]) -> bool:
    """Whether a table's first row can hardly be data: different names of one to three words.

    Example:
        >>> looks_like_header(["DocNo", "Headline"]), looks_like_header(["d1", "Oslo"])
        (True, False)
    """
    names = [cell.strip() for cell in row if cell.strip()]
    return (
        0 < len(names) == len(set(names))
        and not any(character.isdigit() for character in names[0])
        and all(len(name) <= 40 and _COLUMN_NAME.fullmatch(name) for name in names)
    )


def delimiter_of(line: str, is_header: Callable[[list[str]], bool]) -> str:
    """The delimiter of a table with this first line: tab, comma or semicolon."""
    rows = {mark: split_row(line, mark) or [line] for mark in _DELIMITERS}
    headers = [mark for mark, row in rows.items() if len(row) > 1 and is_header(row)]
    if headers or "\t" in line:
        return headers[0] if headers else "\t"
    return max(",;", key=lambda mark: len(rows[mark]))


def split_row(line: str, delimiter: str) -> list[str] | None:
    """Split one row by CSV rules (fields may be quoted with `"`, doubled inside); None if a quote stays
    open. A tab-separated row whose quotes break these rules is taken as
    unquoted, and its quotes are kept.

    Example:
        >>> split_row('1\\t"He said ""no""."\\tTitle', chr(9))
        ['1', 'He said "no".', 'Title']
        >>> split_row('1\\t"Yes" or "no"', chr(9))
        ['1', '"Yes" or "no"']
    """
    if '"' not in line:
        return line.split(delimiter)
    row = _split(line, delimiter)
    if row is not None and delimiter == "\t" and _split(line, delimiter, strict=True) is None:
        return line.split(delimiter)
    return row


def _split(text: str, delimiter: str, *, strict: bool = False) -> list[str] | None:
    """The fields; None if a quote stays open or, with `strict`, breaks the CSV rules."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.reader([text, ""], delimiter=delimiter, strict=strict)
    try:
        row = next(rows)
    except csv.Error:
        return None
    return row if rows.line_num == 1 else None  # an open quote would take the second line in


def read_rows(
    lines: Iterator[tuple[int, str | BadRecord]], delimiter: str, *, quoted: bool = True
) -> Iterator[tuple[int, list[str] | BadRecord]]:
    """Rows with the number of their first line; a quoted field may hold line ends.

    A stray quote does not swallow the rows after it: if the next quote does not close a field by the rules,
    or closes a row of another length than those before, only the line with the open quote is bad.
    """
    waiting: deque[tuple[int, str | BadRecord]] = deque()
    n_fields = 0
    while True:
        item = waiting.popleft() if waiting else next(lines, None)
        if item is None:
            return
        number, line = item
        if isinstance(line, BadRecord):
            yield number, line
            continue
        if not line or line.isspace():
            continue
        row = split_row(line, delimiter) if quoted else line.split(delimiter)
        taken: list[tuple[int, str | BadRecord]] = []
        joined = [line]
        while row is None and len(taken) < _MAX_ROW_LINES:
            following = waiting.popleft() if waiting else next(lines, None)
            if following is None:
                break
            taken.append(following)
            text = following[1]
            if isinstance(text, BadRecord):
                break
            joined.append(text)
            whole = "\n".join(joined)
            if '"' in text and _split(whole, delimiter) is not None:  # closed here, rightly or not
                row = _split(whole, delimiter, strict=True)
                row = row if row and len(row) == (n_fields or len(row)) else None
                break
        if row is None:
            waiting.extendleft(reversed(taken))
            yield number, BadRecord("unbalanced quote", line[:60])
            continue
        n_fields = n_fields or len(row)
        yield number, row


def named_rows(
    lines: Iterator[tuple[int, str | BadRecord]],
    delimiter: str,
    columns_of: Callable[[list[str]], tuple[list[str], bool]],
    *,
    quoted: bool = True,
) -> Iterator[tuple[int, dict[str, str] | BadRecord]]:
    """Rows as mappings; a row of another length is a bad record.

    Args:
        columns_of: takes the first row, returns the column names and whether the row was a header.
        quoted: whether `"` quotes fields; if not, it is an ordinary character.
    """
    columns: list[str] = []
    for number, row in read_rows(lines, delimiter, quoted=quoted):
        if isinstance(row, BadRecord):
            yield number, row
            continue
        if not columns:
            columns, is_header = columns_of(row)
            named = [name for name in columns if name]
            if twice := next((name for name in named if named.count(name) > 1), None):
                raise DataError(f"two columns are called {twice!r}", hint="rename or remove one of them")
            if is_header:
                continue
        if len(row) == len(columns):
            yield number, dict(zip(columns, row, strict=True))
        else:
            found = f"found {len(row)}, expected {len(columns)} ({', '.join(columns)})"
            yield number, BadRecord("wrong number of columns", found)


def parquet_rows(
    path: str, columns: Callable[[Sequence[str]], Sequence[str] | None] = lambda _: None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their 1-based numbers.

    Args:
        columns: takes the names of all columns, returns those to read; None reads all.

    Raises:
        ConfigError: standard input, which Parquet cannot be read from.
        DataError: no such file, not a Parquet file, or damaged.
    """
    if path == STDIN:
        raise ConfigError("Parquet cannot be read from standard input", hint="give the file's name")
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            wanted = columns(file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
