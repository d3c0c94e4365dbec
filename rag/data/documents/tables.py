"""Tables: each row a line that names its columns; CSV files and the sheets of XLSX workbooks."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from rag.core.optional import require
from rag.data.documents.blocks import Piece, Unreadable, clean
from rag.data.documents.limits import Limits, open_archive

_DELIMITERS = ",;\t|"
_MAX_HEADER_CHARS = 80  # of one column's name


def rows(cells: Iterable[Sequence[str]], header: Sequence[str] = (), *, page: str = "") -> Iterator[Piece]:
    """Each row as "column: value; column: value"; cells without a value are left out.

    Example:
        >>> [piece.text for piece in rows([["2", "37"], ["3", ""]], ["Week", "Room"])]
        ['Week: 2; Room: 37', 'Week: 3']
        >>> [piece.text for piece in rows([["Oslo", "Norway"]])]
        ['Oslo; Norway']
    """
    names = [clean(name).rstrip(":") for name in header]
    for row in cells:
        shown = []
        for column, cell in enumerate(row):
            value, name = clean(cell), names[column] if column < len(names) else ""
            if value:
                shown.append(f"{name}: {value}" if name and name != value else value)
        if shown:
            yield Piece("row", "; ".join(shown), page=page)


def grid(cells: Sequence[Sequence[str]], *, page: str = "") -> Iterator[Piece]:
    """Rows of a table whose first row is its header, if it looks like one."""
    filled = [row for row in cells if any(cell.strip() for cell in row)]
    width = max(map(len, filled), default=0)
    while len(filled) > 1 and width > 2 and sum(bool(cell.strip()) for cell in filled[0]) == 1:
        yield Piece("paragraph", " ".join(filled[0]), page=page)  # a title above the table
        filled = filled[1:]
    if len(filled) > 1 and _is_header(filled[0]):
        yield from rows(filled[1:], filled[0], page=page)
    else:
        yield from rows(filled, page=page)


def _is_header(row: Sequence[str]) -> bool:
    """Short names, all different, of which most columns have one and none is a number."""
    names = [cell.strip() for cell in row if cell.strip()]
    return (
        2 * len(names) > len(row)
        and len(set(names)) == len(names)
        and all(len(name) <= _MAX_HEADER_CHARS and not _is_number(name) for name in names)
    )


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").rstrip("%"))
    except ValueError:
        return False
    return True


def csv_table(text: str) -> Iterator[Piece]:
    """A file of separated values; the delimiter is the one that cuts its first lines most evenly.

    A first line such as `sep=;`, which Excel writes, names the delimiter and is no row.
    """
    named = re.match(r"sep=(.)\r?\n", text)
    text = text[named.end() :] if named else text
    csv.field_size_limit(max(len(text), 1))
    sample = text[:20_000].splitlines()[:20]
    counts = {mark: [line.count(mark) for line in sample if line.strip()] for mark in _DELIMITERS}
    likely = [mark for mark, n in counts.items() if n and min(n) > 0 and min(n) == max(n)]
    best = named[1] if named else max(likely or _DELIMITERS, key=lambda mark: sum(counts[mark]))
    try:
        cells = list(csv.reader(io.StringIO(text, newline=""), delimiter=best))
    except csv.Error as error:
        raise Unreadable("broken file", "save it as CSV again", str(error)) from error
    yield from grid(cells)


def workbook(data: bytes, limits: Limits) -> tuple[str, list[Piece]]:
    """Title and pieces of an XLSX file: each sheet a section."""
    open_archive(data, limits).close()
    book = require("openpyxl", "docs").load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    limits.check_pages(len(book.worksheets), "sheets")
    pieces: list[Piece] = []
    chars = 0
    for sheet in book.worksheets:
        if sheet.sheet_state != "visible":
            continue
        sheet.reset_dimensions()  # some programs write wrong ones, and rows would be cut by them
        cells = []
        for row in sheet.iter_rows(values_only=True):
            cells.append([_shown(value) for value in row])
            chars += sum(map(len, cells[-1]))
            if chars > limits.max_chars:
                raise Unreadable("too long", "split it", f"more than {limits.max_chars:,} characters")
        used = [column for column in range(max(map(len, cells), default=0)) if _has(cells, column)]
        found = list(grid([[row[n] if n < len(row) else "" for n in used] for row in cells]))
        if found:
            pieces += [Piece("heading", sheet.title, 1), *found]
    return book.properties.title or "", pieces


def _has(cells: Sequence[Sequence[str]], column: int) -> bool:
    return any(column < len(row) and row[column] for row in cells)


def _shown(value: object) -> str:
    """A cell as people read it: dates without midnight, whole numbers without ".0"."""
    if value is None:
        return ""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="minutes")
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)
