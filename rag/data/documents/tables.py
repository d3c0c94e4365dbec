"""Spreadsheets and CSV files: each row a line that names its columns.

A sheet may have several tables, which may begin anywhere.
"""

import csv
import io
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from typing import Any, Literal

from rag.core.optional import require
from rag.data.documents.blocks import (
    MAX_CHARS,
    Content,
    Piece,
    Unreadable,
    clean,
    not_read,
    stated_title,
)
from rag.data.documents.grid import (
    EMPTY,
    MAX_NAME_CHARS,
    Cell,
    Grid,
    Row,
    guessed_headings,
    is_number,
    lines,
    of_texts,
    size,
    texts_of,
)
from rag.data.documents.kinds import count_drawn
from rag.data.documents.number_formats import format_value
from rag.data.documents.numerals import with_exponents
from rag.data.formats import joins_lines
from rag.data.table_text import quoted

FORMULAS = (
    "formulas without a stored value, which a spreadsheet program stores when it saves the file"
)
"""What is not read of a sheet that another program wrote."""

_DELIMITERS = ",;\t|"
# A line that tells Excel the delimiter.
_FOR_EXCEL = re.compile(r"\Asep=.\s*\n")
# Rows by which a header or a delimiter is judged.
_SAMPLE = 20
_SAMPLE_CHARS = 20_000
# Share of the rows of a CSV file that may have another length; with more, it has several tables.
_MAX_UNUSUAL = 0.2
_MAX_MERGED_COLUMNS = 100
# Of a sheet of Excel.
_MAX_COLUMNS = 16_384
_PREFIX = re.compile(rb"<(\w+:)(?:worksheet|comments)\b")
_MERGED = re.compile(rb'<mergeCell [^>]*ref="([A-Z]{1,3}\d+:[A-Z]{1,3}\d+)"')
_COMMENTS = re.compile(r"xl/(?:comments/)?comment[^/]*\.xml")
_DRAWING = re.compile(r"xl/drawings/drawing[^/]*\.xml")
_TEXT_BOX = re.compile(rb"<(?:\w+:)?sp\b(?:(?!</(?:\w+:)?sp>).)*?<a:t\b", re.DOTALL)
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
# One whose result XlsxWriter leaves to be calculated.
_UNCALCULATED = re.compile(rb'<c r="(\w+)"[^<>]*><f\b[^<>]*(?:/>|>[^<]*</f>)<v>0</v></c>')
# A formula whose cell has no value, or an empty value.
_WITHOUT_VALUE = re.compile(rb"<f\b[^>]*(?:/>|>[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>")

_HIDDEN_ROW = re.compile(rb'<row\b(?=[^<>]*\shidden="(?:1|true)")[^<>]*?\sr="(\d+)"')
_HIDDEN_COLUMNS = re.compile(
    rb'<col\b(?=[^<>]*\shidden="(?:1|true)")(?=[^<>]*\smin="(\d+)")[^<>]*?\smax="(\d+)"'
)

# The cells of a row by their columns.
_SparseRow = dict[int, Cell]


def sheet(cells: Iterable[Row]) -> Iterator[Piece]:
    """The tables of a sheet: each row with the names of its columns.

    Empty rows divide a sheet into blocks. A table is a header and the rows below it, in this block
    and the next ones; rows above a header are narrower. A short text alone above a table is its
    heading. If several blocks begin with the same label ("Product: tea", "Product: milk"), that
    line is the heading of each.

    Example:
        >>> cells = [["Rooms of 2024"], [], ["Week", "Room", "Who"], ["2", "37", ""], [], ["3", "38", "Ann"]]
        >>> [(piece.kind, piece.text) for piece in sheet(of_texts(cells))]
        [('heading', 'Rooms of 2024'), ('row', 'Week: 2; Room: 37'), ('row', 'Week: 3; Room: 38; Who: Ann')]
    """
    blocks = [list(rows) for is_filled, rows in groupby(cells, _is_filled) if is_filled]
    labels = Counter(_label(block[0]) for block in blocks)
    labels.pop("", None)
    widest = max((size(row) for block in blocks for row in block), default=0)
    narrow = min(2, widest - 1)
    level = 2
    headings: Grid = ()
    without_rows: Grid = ()
    for block, following in pairwise([*blocks, []]):
        is_record = labels[_label(block[0])] > 1
        headings_at = None
        if not is_record or narrow >= 2:
            headings_at = _headings_at(block, following, narrow)
        if headings and headings_at is None and not is_record and size(block[0]) > narrow:
            yield from lines(headings, block)
            without_rows = ()
            continue
        yield from lines((), without_rows)
        first, end = headings_at or (len(block), len(block))
        n_titles = int(is_record or _is_title(block, first, following, narrow))
        if n_titles:
            yield Piece("heading", _text(block[0]), 2 if is_record else level)
        if is_record:
            level = 3
        # What no header names.
        for row in block[n_titles:first]:
            yield Piece("paragraph" if size(row) == 1 else "row", _text(row))
        headings = block[first:end]
        yield from lines(headings, block[end:])
        without_rows = headings if end == len(block) else ()


def _is_filled(row: Row) -> bool:
    return size(row) > 0


def _label(row: Row) -> str:
    """The first of two cells if it can name the second, else ""."""
    texts = texts_of(row)
    is_label = len(texts) == 2 and bool(row[0].text) and len(texts[0]) <= MAX_NAME_CHARS
    return texts[0].rstrip(":") if is_label and not is_number(texts[0]) else ""


def _text(row: Row) -> str:
    texts = texts_of(row)
    if len(texts) == 1:
        return texts[0]
    label = _label(row)
    return f"{quoted(label)}: {quoted(texts[1])}" if label else "; ".join(map(quoted, texts))


def _headings_at(
    block: Sequence[Row], following: Sequence[Row], narrow: int
) -> tuple[int, int] | None:
    """The first and one past the last row of headings in a block.

    They begin at its first row that is not narrow, or twice as wide as all above it, or whose
    cells are parted in the next row.
    """
    widest_above = narrow
    for number, row in enumerate(block):
        rows = list(block[number : number + 1 + _SAMPLE])
        if len(rows) == 1:
            rows += following[:_SAMPLE]
        n_cells = size(row)
        # Names of rows stand below the empty corner of a table.
        if n_cells > 1 and not row[0].text and rows[1:] and rows[1][0].text:
            n_cells += 1
        is_wider = widest_above == narrow or n_cells >= 2 * widest_above
        is_wide = n_cells > narrow and is_wider
        depth = 0
        if is_wide or n_cells == 2:
            depth = guessed_headings(_without_empty_columns(rows))
        if depth > 1 or (depth and is_wide):
            return number, number + depth
        widest_above = max(widest_above, n_cells)
    return None


def _without_empty_columns(rows: Sequence[Row]) -> list[Row]:
    width = max(map(len, rows))
    padded = [[*row, *[EMPTY] * (width - len(row))] for row in rows]
    columns = filter(_is_filled, zip(*padded, strict=True))
    return list(zip(*columns, strict=True))


def _is_title(block: Sequence[Row], first: int, following: Sequence[Row], narrow: int) -> bool:
    """Whether the first row stands above a table, alone or by itself in its block, and is short.

    Args:
        first: number of the first row of headings in the block; the block's length without any.
    """
    n_cells = size(block[0])
    if len(_text(block[0])) > MAX_NAME_CHARS or n_cells > narrow:
        return False
    if n_cells == 1 and 0 < first < len(block):
        return True
    headings_at = _headings_at(following, (), narrow) if len(block) == 1 else None
    return headings_at is not None and headings_at[0] == 0


def csv_table(text: str) -> Content:
    """The tables of a CSV file, and notes about its quotes and about rows of other lengths."""
    # The limit is that of the whole process: never lower than others need.
    csv.field_size_limit(sys.maxsize)
    text = _FOR_EXCEL.sub("", text)
    rows, notes = _csv_rows(text, _delimiter(text))
    lengths = _lengths(rows)
    if not lengths:
        return Content("", [])
    usual, n_usual = lengths.most_common(1)[0]
    n_others = lengths.total() - n_usual
    if 0 < n_others <= _MAX_UNUSUAL * lengths.total():
        first = next(number for number, row in enumerate(rows, 1) if len(row) not in (0, usual))
        counted = f"rows with another number of cells than {usual}: {n_others:,}"
        notes.append(f"{counted}, the first is row {first}")
    return Content("", list(sheet(of_texts(rows))), notes)


def _csv_rows(text: str, delimiter: str) -> tuple[list[list[str]], list[str]]:
    """The rows of a CSV file, and a note if its quotes are not those of CSV: they are then part of
    the text, if more rows have the usual length so.
    """

    def read(
        quoting: Literal[0, 3], *, strict: bool = False, escape: str | None = None
    ) -> list[list[str]]:
        lines = io.StringIO(text, newline="")
        reader = csv.reader(
            lines,
            delimiter=delimiter,
            quoting=quoting,
            strict=strict,
            escapechar=escape,
            skipinitialspace=True,
        )
        return list(reader)

    with suppress(csv.Error):
        rows = read(csv.QUOTE_MINIMAL, strict=True)
        if delimiter != "\t" or not any(map(joins_lines, rows)):
            return rows, []
    readings = [read(csv.QUOTE_MINIMAL), read(csv.QUOTE_NONE)]
    if '\\"' in text:
        # As MySQL and Spark write them.
        readings.insert(0, read(csv.QUOTE_MINIMAL, escape="\\"))
    most = max(readings, key=lambda rows: max(_lengths(rows).values()))
    return most, ["a quote is not closed, or not doubled within its cell"]


def _lengths(rows: Iterable[Sequence[str]]) -> Counter[int]:
    return Counter(map(len, filter(None, rows)))


def _delimiter(text: str) -> str:
    """What splits the first lines most evenly, and into most parts."""
    sample = list(filter(str.strip, text[:_SAMPLE_CHARS].splitlines()[:_SAMPLE]))

    def rank(mark: str) -> tuple[bool, int]:
        counts = [line.count(mark) for line in sample]
        is_even = len({*counts}) == 1 and counts[0] > 0
        return is_even, sum(counts)

    return max(_DELIMITERS, key=rank)


def workbook(data: bytes) -> Content:
    """An XLSX file, each sheet a section, and notes about what is not read and formulas without a
    value.
    """
    book = require("openpyxl", "docs").load_workbook(
        io.BytesIO(data), read_only=True, data_only=True, rich_text=True
    )
    pieces: list[Piece] = []
    beside = Counter[str]()
    members = book._archive.namelist()
    for name in filter(_COMMENTS.match, members):
        beside["cell comments"] += _source(book, name).count(b"<comment ")
    for name in filter(_DRAWING.match, members):
        beside["text boxes"] += len(_TEXT_BOX.findall(_source(book, name)))
    beside.update(count_drawn(data))
    calculates_when_opened = b'fullCalcOnLoad="1"' in _source(book, "xl/workbook.xml")
    for page in book.worksheets:
        if page.sheet_state != "visible":
            beside["hidden sheets"] += 1
            continue
        # Some programs write wrong dimensions, and rows would be cut by them.
        page.reset_dimensions()
        source = _source(book, page._worksheet_path)
        unknown = set[str]()
        if calculates_when_opened:
            unknown.update(map(bytes.decode, _UNCALCULATED.findall(source)))
        rows = (_cells(row, unknown) for row in page.iter_rows())
        content = list(sheet(_dense(_shown(rows, source, beside))))
        if content:
            pieces += [Piece("heading", page.title, 1), *content]
        beside[FORMULAS] += len(_WITHOUT_VALUE.findall(source)) + len(unknown)
    return Content(stated_title(book.properties.title or ""), pieces, not_read(beside))


def _source(book: Any, member: str) -> bytes:
    """The XML of a part of a workbook, without a prefix before the names of its elements."""
    source: bytes = book._archive.read(member)
    prefix = _PREFIX.search(source[:2048])
    if prefix:
        for bracket in (b"<", b"</"):
            source = source.replace(bracket + prefix[1], bracket)
    return source


def _cells(row: Sequence[Any], unknown: Container[str]) -> _SparseRow:
    """The filled cells of a row, without those at places whose value is not known."""
    cells: _SparseRow = {}
    for column, cell in enumerate(row, start=1):
        value = cell.value
        if isinstance(value, list):
            # A text in several fonts.
            fonts = [getattr(run, "font", None) for run in value]
            are_raised = [getattr(font, "vertAlign", None) == "superscript" for font in fonts]
            value = with_exponents(zip(map(str, value), are_raised, strict=True))
        if value is not None and cell.coordinate not in unknown:
            formatted = format_value(value, cell.number_format)
            # The end of a line, which XML cannot hold, is written as _x000D_.
            text = clean(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), formatted))
            if text:
                cells[column] = Cell(text, is_heading=cell.font.b)
    return cells


def _shown(rows: Iterable[_SparseRow], source: bytes, hidden: Counter[str]) -> Iterator[_SparseRow]:
    """Rows without hidden cells, in which merged cells stand at all places that they cover; in rows
    without another cell only where they begin.

    Args:
        hidden: counts the hidden rows and columns that are filled.
    """
    boundaries = require("openpyxl.utils.cell", "docs").range_boundaries
    ranges_from: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for match in _MERGED.finditer(source):
        left, first_row, right, last_row = boundaries(match[1].decode())
        right = min(right, left + _MAX_MERGED_COLUMNS)
        ranges_from[first_row].append((left, right, last_row))
    hidden_rows = set(map(int, _HIDDEN_ROW.findall(source)))
    hidden_columns = set[int]()
    for first, last in _HIDDEN_COLUMNS.findall(source):
        hidden_columns.update(range(int(first), min(int(last), _MAX_COLUMNS) + 1))
    reaching: list[tuple[range, int, Cell]] = []
    filled = set[int]()
    for number, row in enumerate(rows, start=1):
        # A sheet may have a million empty rows before its last cell.
        if row:
            reaching = [entry for entry in reaching if entry[1] >= number]
            for left, right, last_row in ranges_from.get(number, ()):
                if left in row:
                    row[left].column_span = right - left + 1
                    reaching.append((range(left, right + 1), last_row, row[left]))
            for columns, _, cell in reaching:
                row.update(dict.fromkeys(columns, cell))
        if number in hidden_rows:
            hidden["hidden rows"] += bool(row)
            continue
        filled |= hidden_columns & row.keys()
        yield {column: cell for column, cell in row.items() if column not in hidden_columns}
    hidden["hidden columns"] += len(filled)


def _dense(rows: Iterable[Mapping[int, Cell]]) -> list[list[Cell]]:
    """Rows of filled cells by columns, without those that no row fills, and one empty row for
    many.
    """
    filled: list[Mapping[int, Cell]] = []
    columns = set[int]()
    n_chars = 0
    for row in rows:
        if not row and not (filled and filled[-1]):
            continue
        filled.append(row)
        columns.update(row)
        n_chars += sum(len(cell.text) for cell in row.values())
        if max(n_chars, len(columns) * len(filled)) > MAX_CHARS:
            detail = f"more than {MAX_CHARS:,} cells or characters"
            raise Unreadable("too long", "split it", detail)
    used = sorted(columns)
    return [[row.get(column, EMPTY) for column in used] for row in filled]
