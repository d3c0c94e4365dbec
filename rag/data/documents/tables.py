"""Tables of texts, spreadsheets and CSV files: each row a line that names its columns.

A sheet may have several tables, which may begin anywhere.
"""

import csv
import datetime
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise, zip_longest

from rag.core.optional import require
from rag.data.documents.blocks import MAX_CHARS, Piece, Unreadable, clean

_MAX_NAME_CHARS = 80  # of one column's name
_DELIMITERS = ",;\t|"
_SAMPLE = 20  # rows by which a header or a delimiter is judged

# a formula whose cell has no value, or an empty one
_WITHOUT_VALUE = re.compile(rb"<f\b[^>]*(?:/>|>[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>")

Row = Sequence[str]


def rows(cells: Iterable[Sequence[str]], header: Sequence[str] = ()) -> Iterator[Piece]:
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
            yield Piece("row", "; ".join(shown))


def grid(cells: Sequence[Sequence[str]]) -> Iterator[Piece]:
    """Rows of a table in a text, whose first row is its header if it looks like one.

    A single text in the first row, which may be repeated where cells are merged, is the table's
    title.
    """
    filled = [row for row in cells if any(cell.strip() for cell in row)]
    width = max(map(len, filled), default=0)
    while (
        len(filled) > 1
        and width > 2
        and len(title := set(filter(None, map(clean, filled[0])))) == 1
    ):
        yield Piece("paragraph", title.pop())
        filled = filled[1:]
    if filled and is_header(filled[0], filled[1:]):
        yield from rows(filled[1:], filled[0])
    else:
        yield from rows(filled)


def is_header(row: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether a row is a header: short names for most columns, most of them distinct; no numbers
    except years and counts.

    Example:
        >>> is_header(["Country", "2010", "2020"], [["Norway", "4.9", "5.4"]])
        True
        >>> is_header(["Norway", "4.9", "5.4"], [["Sweden", "9.4", "10.4"]])
        False
    """
    names = [name for cell in row if (name := clean(cell))]
    numbers = [name for name in names if is_number(name)]
    if not below or 2 * len(names) <= len(row) or max(map(len, names)) > _MAX_NAME_CHARS:
        return False
    if names[0].endswith(":") and not names[-1].endswith(":"):  # "Name:" beside the name itself
        return False
    if numbers and (is_number(names[0]) or not _are_counted(numbers)):
        return False
    return 2 * len(set(names)) > len(names)


def _are_counted(numbers: Sequence[str]) -> bool:
    """Whether they are at least two years, or whole numbers in equal steps."""
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
        return False
    values = list(map(int, numbers))
    steps = {b - a for a, b in pairwise(values)}
    return 0 not in steps and (len(steps) == 1 or all(1500 <= value <= 2200 for value in values))


def is_number(text: str) -> bool:
    """Whether a text is a number, with or without thousands separators and a percent sign."""
    try:
        float(text.strip().replace(",", "").rstrip("%"))
    except ValueError:
        return False
    return True


def sheet(cells: Iterable[Row]) -> Iterator[Piece]:
    """The tables of a sheet: each row with the names of its columns.

    Empty rows divide a sheet into blocks. A table is a header and the rows below it, in this block
    and the next ones; rows above a header are narrower. A short text alone above a table is its
    heading. If several blocks begin with the same label ("Product: tea", "Product: milk"), that
    line is the heading of each.

    Example:
        >>> cells = [["Rooms of 2024"], [], ["Week", "Room", "Who"], ["2", "37", ""], [], ["3", "38", "Ann"]]
        >>> [(piece.kind, piece.text) for piece in sheet(cells)]
        [('heading', 'Rooms of 2024'), ('row', 'Week: 2; Room: 37'), ('row', 'Week: 3; Room: 38; Who: Ann')]
    """
    blocks = [
        list(block) for is_filled, block in groupby(cells, lambda row: _size(row) > 0) if is_filled
    ]
    widest = max((_size(row) for block in blocks for row in block), default=0)
    narrow = min(2, widest - 1)
    labels = Counter(label for block in blocks if (label := _label(block[0])))
    level, header = 2, None
    for block, following in pairwise([*blocks, []]):
        is_record = labels[_label(block[0])] > 1
        at = None if is_record and narrow < 2 else _header_at(block, following, narrow)
        if header is not None and at is None and not is_record and _size(block[0]) > narrow:
            yield from rows(block, header)
            continue
        is_title = _is_title(block, at, following, narrow)
        if is_record or is_title:
            yield Piece("heading", _line(block[0]), 2 if is_record else level)
            level = 3 if is_record else level
        for row in block[is_record or is_title : at]:  # which no header names
            yield Piece("paragraph" if _size(row) == 1 else "row", _line(row))
        header = None if at is None else block[at]
        if header is not None and at is not None:
            yield from rows(block[at + 1 :], header)


def _size(row: Row) -> int:
    return sum(bool(cell.strip()) for cell in row)


def _label(row: Row) -> str:
    """The first of two cells if it can name the second, else ""."""
    if (
        _size(row) != 2
        or not 0 < len(label := clean(row[0])) <= _MAX_NAME_CHARS
        or is_number(label)
    ):
        return ""
    return label.rstrip(":")


def _line(row: Row) -> str:
    label, filled = _label(row), [clean(cell) for cell in row if cell.strip()]
    return f"{label}: {filled[1]}" if label else "; ".join(filled)


def _header_at(block: Sequence[Row], following: Sequence[Row], narrow: int) -> int | None:
    """Place of the header in a block: its first row that is not narrow, or twice as wide as all
    above it.
    """
    above = narrow
    for at, row in enumerate(block):
        size = _size(row)
        if size > narrow and (above == narrow or size >= 2 * above):
            below = block[at + 1 : at + 1 + _SAMPLE] or following[:_SAMPLE]
            columns = zip_longest(row, *below, fillvalue="")
            filled = [column for column in columns if any(map(str.strip, column))]
            names, *values = zip(*filled, strict=True)
            if is_header(names, values):
                return at
        above = max(above, size)
    return None


def _is_title(block: Sequence[Row], at: int | None, following: Sequence[Row], narrow: int) -> bool:
    """Whether the first row stands above a table, alone or by itself in its block, and is short."""
    size = _size(block[0])
    if len(_line(block[0])) > _MAX_NAME_CHARS or size > narrow:
        return False
    return (size == 1 and bool(at)) or (len(block) == 1 and _header_at(following, (), narrow) == 0)


def csv_table(text: str) -> tuple[str, list[Piece]]:
    """Title ("") and tables of a CSV file; its delimiter splits the first lines most evenly."""
    csv.field_size_limit(sys.maxsize)  # of the whole process: never lower than others need
    sample = text[:20_000].splitlines()[:_SAMPLE]
    counts = {mark: [line.count(mark) for line in sample if line.strip()] for mark in _DELIMITERS}
    likely = [mark for mark, n in counts.items() if n and min(n) > 0 and min(n) == max(n)]
    best = max(likely or _DELIMITERS, key=lambda mark: sum(counts[mark]))
    return "", list(sheet(csv.reader(io.StringIO(text, newline=""), delimiter=best)))


def workbook(data: bytes) -> tuple[str, list[Piece], tuple[str, ...]]:
    """Title and pieces of an XLSX file, each sheet a section, and notes about formulas without a
    value.
    """
    book = require("openpyxl", "docs").load_workbook(
        io.BytesIO(data), read_only=True, data_only=True
    )
    pieces, notes = list[Piece](), list[str]()
    for page in book.worksheets:
        if page.sheet_state != "visible":
            continue
        page.reset_dimensions()  # some programs write wrong ones, and rows would be cut by them
        rows = (
            {column: text for column, value in enumerate(row or ()) if (text := _shown(value))}
            for row in page.iter_rows(values_only=True)
        )
        if content := list(sheet(_dense(rows))):
            pieces += [Piece("heading", page.title, 1), *content]
        if missing := len(_WITHOUT_VALUE.findall(book._archive.read(page._worksheet_path))):
            remedy = "open and save it in a spreadsheet program"
            notes.append(
                f"sheet {page.title!r}: formulas without a stored value: {missing:,}; {remedy}"
            )
    return book.properties.title or "", pieces, tuple(notes)


def _dense(rows: Iterable[Mapping[int, str]]) -> list[list[str]]:
    """Rows of filled cells by columns, without those that no row fills, and one empty row for
    many.
    """
    filled, chars = list[Mapping[int, str]](), 0
    for row in rows:
        if row or (filled and filled[-1]):
            filled.append(row)
            chars += sum(map(len, row.values()))
        if chars > MAX_CHARS:
            break
    used = sorted({column for row in filled for column in row})
    if max(chars, len(used) * len(filled)) > MAX_CHARS:
        raise Unreadable("too long", "split it", f"more than {MAX_CHARS:,} cells or characters")
    return [[row.get(column, "") for column in used] for row in filled]


def _shown(value: object) -> str:
    """A cell as people read it: dates without midnight, whole numbers without ".0"."""
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="minutes").removesuffix(" 00:00")
    if isinstance(value, float):
        return f"{value:.12g}"
    return "" if value is None else str(value)
