"""Spreadsheets and CSV files: each row a line that names its columns.

A sheet may have several tables, which may begin anywhere.
"""

import csv
import io
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from rag.core.optional import require
from rag.data.documents.blocks import MAX_CHARS, Piece, Unreadable, clean, not_read, stated_title
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
from rag.data.documents.number_formats import shown
from rag.data.table_text import quoted

_DELIMITERS = ",;\t|"
_MERGED = re.compile(rb'<mergeCell [^>]*ref="([A-Z]{1,3})(\d+):([A-Z]{1,3})(\d+)"')
_COMMENTS = re.compile(r"xl/(?:comments/)?comment[^/]*\.xml")
_MAX_MERGED_COLUMNS = 100
_MAX_UNUSUAL = 0.2  # of the rows of a table; with more there are several tables
_SAMPLE = 20  # rows by which a header or a delimiter is judged

# a formula whose cell has no value, or an empty one
_WITHOUT_VALUE = re.compile(rb"<f\b[^>]*(?:/>|>[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>")


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
    blocks = [
        list(block) for is_filled, block in groupby(cells, lambda row: size(row) > 0) if is_filled
    ]
    widest = max((size(row) for block in blocks for row in block), default=0)
    narrow = min(2, widest - 1)
    labels = Counter(label for block in blocks if (label := _label(block[0])))
    level = 2
    headings: Grid = ()
    for block, following in pairwise([*blocks, []]):
        is_record = labels[_label(block[0])] > 1
        found = None if is_record and narrow < 2 else _headings_at(block, following, narrow)
        if headings and found is None and not is_record and size(block[0]) > narrow:
            yield from lines(headings, block)
            continue
        at, end = found or (None, None)
        is_title = _is_title(block, at, following, narrow)
        if is_record or is_title:
            yield Piece("heading", _text(block[0]), 2 if is_record else level)
            level = 3 if is_record else level
        for row in block[is_record or is_title : at]:  # which no header names
            yield Piece("paragraph" if size(row) == 1 else "row", _text(row))
        headings = () if at is None else block[at:end]
        if headings:
            yield from lines(headings, block[end:])


def _label(row: Row) -> str:
    """The first of two cells if it can name the second, else ""."""
    texts = texts_of(row)
    is_label = len(texts) == 2 and bool(row[0].text) and len(texts[0]) <= MAX_NAME_CHARS
    return texts[0].rstrip(":") if is_label and not is_number(texts[0]) else ""


def _text(row: Row) -> str:
    label = _label(row)
    texts = texts_of(row)
    if len(texts) == 1:
        return texts[0]
    return f"{quoted(label)}: {quoted(texts[1])}" if label else "; ".join(map(quoted, texts))


def _headings_at(
    block: Sequence[Row], following: Sequence[Row], narrow: int
) -> tuple[int, int] | None:
    """The first and one past the last row of headings in a block.

    They begin at its first row that is not narrow, or twice as wide as all above it, or whose
    cells are parted in the next row.
    """
    above = narrow
    for at, row in enumerate(block):
        rows = [*block[at : at + 1 + _SAMPLE]]
        if len(rows) == 1:
            rows += following[:_SAMPLE]
        n_cells = size(row)
        is_wide = n_cells > narrow and (above == narrow or n_cells >= 2 * above)
        depth = guessed_headings(_without_empty_columns(rows)) if is_wide or n_cells == 2 else 0
        if depth > 1 or (depth and is_wide):
            return at, at + depth
        above = max(above, n_cells)
    return None


def _without_empty_columns(rows: Sequence[Row]) -> list[list[Cell]]:
    width = max(map(len, rows))
    padded = [[*row, *[EMPTY] * (width - len(row))] for row in rows]
    columns = [column for column in zip(*padded, strict=True) if any(cell.text for cell in column)]
    return [list(row) for row in zip(*columns, strict=True)]


def _is_title(block: Sequence[Row], at: int | None, following: Sequence[Row], narrow: int) -> bool:
    """Whether the first row stands above a table, alone or by itself in its block, and is short."""
    n_cells = size(block[0])
    if len(_text(block[0])) > MAX_NAME_CHARS or n_cells > narrow:
        return False
    if n_cells == 1 and at:
        return True
    found = _headings_at(following, (), narrow) if len(block) == 1 else None
    return found is not None and found[0] == 0


def csv_table(text: str) -> tuple[str, list[Piece], tuple[str, ...]]:
    """Title ("") and tables of a CSV file, and a note about rows of other lengths.

    Its delimiter splits the first lines most evenly.
    """
    csv.field_size_limit(sys.maxsize)  # of the whole process: never lower than others need
    sample = text[:20_000].splitlines()[:_SAMPLE]
    counts = {mark: [line.count(mark) for line in sample if line.strip()] for mark in _DELIMITERS}
    likely = [mark for mark, n in counts.items() if n and min(n) > 0 and min(n) == max(n)]
    best = max(likely or _DELIMITERS, key=lambda mark: sum(counts[mark]))
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=best))
    lengths = Counter(len(row) for row in rows if row)
    if not lengths:
        return "", [], ()
    usual, n_usual = lengths.most_common(1)[0]
    n_others = lengths.total() - n_usual
    notes = list[str]()
    if 0 < n_others <= _MAX_UNUSUAL * lengths.total():
        first = next(number for number, row in enumerate(rows, 1) if row and len(row) != usual)
        notes.append(
            f"rows with another number of cells than {usual}: {n_others:,}, the first is row {first}"
        )
    return "", list(sheet(of_texts(rows))), tuple(notes)


def workbook(data: bytes) -> tuple[str, list[Piece], tuple[str, ...]]:
    """Title and pieces of an XLSX file, each sheet a section, and notes about what is not
    read and formulas without a value.
    """
    book = require("openpyxl", "docs").load_workbook(
        io.BytesIO(data), read_only=True, data_only=True
    )
    pieces, notes = list[Piece](), list[str]()
    hidden = [page.title for page in book.worksheets if page.sheet_state != "visible"]
    if hidden:
        notes.append(f"hidden sheets are not read: {', '.join(map(repr, hidden))}")
    comments = (name for name in book._archive.namelist() if _COMMENTS.match(name))
    notes += not_read(
        {"cell comments": sum(book._archive.read(it).count(b"<comment ") for it in comments)}
    )
    for page in book.worksheets:
        if page.sheet_state != "visible":
            continue
        page.reset_dimensions()  # some programs write wrong ones, and rows would be cut by them
        source = book._archive.read(page._worksheet_path)
        rows = (
            {
                column: Cell(text)
                for column, cell in enumerate(row, start=1)
                if cell.value is not None and (text := clean(shown(cell.value, cell.number_format)))
            }
            for row in page.iter_rows()
        )
        if content := list(sheet(_dense(_merged(rows, source)))):
            pieces += [Piece("heading", page.title, 1), *content]
        if missing := len(_WITHOUT_VALUE.findall(source)):
            remedy = "open and save it in a spreadsheet program"
            notes.append(
                f"sheet {page.title!r}: formulas without a stored value: {missing:,}; {remedy}"
            )
    return stated_title(book.properties.title or ""), pieces, tuple(notes)


def _merged(rows: Iterable[dict[int, Cell]], source: bytes) -> Iterator[dict[int, Cell]]:
    """Rows of cells by columns in which merged cells stand at all places that they cover; in rows
    without another cell only where they begin.
    """
    ranges = defaultdict[int, list[tuple[int, int, int]]](list)
    for match in _MERGED.finditer(source):
        left, right = (_column_number(letters) for letters in match.group(1, 3))
        first, last = int(match[2]), int(match[4])
        ranges[first].append((left, min(right, left + _MAX_MERGED_COLUMNS), last))
    reaching = list[tuple[int, int, int, Cell]]()
    for number, row in enumerate(rows, start=1):
        reaching = [entry for entry in reaching if entry[2] >= number]
        for left, right, last in ranges[number]:
            if left in row:
                row[left].column_span = right - left + 1
                reaching.append((left, right, last, row[left]))
        if row:
            for left, right, _, cell in reaching:
                for column in range(left, right + 1):
                    row[column] = cell
        yield row


def _column_number(letters: bytes) -> int:
    """The number of a column by its letters, 1 for "A"."""
    number = 0
    for letter in letters:
        number = 26 * number + letter - ord("A") + 1
    return number


def _dense(rows: Iterable[Mapping[int, Cell]]) -> list[list[Cell]]:
    """Rows of filled cells by columns, without those that no row fills, and one empty row for
    many.
    """
    filled, chars = list[Mapping[int, Cell]](), 0
    for row in rows:
        if row or (filled and filled[-1]):
            filled.append(row)
            chars += sum(len(cell.text) for cell in row.values())
        if chars > MAX_CHARS:
            break
    used = sorted({column for row in filled for column in row})
    if max(chars, len(used) * len(filled)) > MAX_CHARS:
        raise Unreadable("too long", "split it", f"more than {MAX_CHARS:,} cells or characters")
    return [[row.get(column, EMPTY) for column in used] for row in filled]
