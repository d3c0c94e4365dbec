"""Tables of every format as one grid of cells, and the lines of text that it becomes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from rag.data.documents.blocks import Piece, Unreadable, clean
from rag.data.table_text import quoted

MAX_NAME_CHARS = 80
"""Limit of the name of a column."""

# A date, a time of day or two, a number with a unit, a truth value.
_MEASURED = re.compile(
    r"(?:\d{1,4}[-./]){2}\d{1,4}(?:[ T]\d\d?:\d\d(?::\d\d)?)?|"
    r"\d\d?:\d\d(?::\d\d)?(?:\s?[-–]\s?\d\d?:\d\d)?|"
    r"-?\d[\d.,]*\s?[^\W\d_]{1,3}|TRUE|FALSE"
)
# Limit of the places of a table.
_MAX_PLACES = 2_000_000


@dataclass(slots=True, eq=False)
class Cell:
    """A cell of a table.

    Attributes:
        row_span: number of rows that it covers.
        column_span: number of columns that it covers.
        is_heading: whether the document marks it as a heading.
    """

    text: str = ""
    row_span: int = 1
    column_span: int = 1
    is_heading: bool = False


Row = Sequence[Cell]
Grid = Sequence[Row]
"""Rows of the same length; a cell stands at every place that it covers."""

EMPTY = Cell()
"""Stands where no cell is."""


def filled(rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """Put every cell at all places that it covers, as HTML does; other places are empty.

    Raises:
        Unreadable: the table has too many places.

    Example:
        >>> rows = [[Cell("Red", row_span=2), Cell("Ann")], [Cell("Bob")]]
        >>> [[cell.text for cell in row] for row in filled(rows)]
        [['Red', 'Ann'], ['Red', 'Bob']]
    """
    grid: list[list[Cell]] = [[] for _ in rows]
    n_places = 0
    for number, row in enumerate(rows):
        line = grid[number]
        column = 0
        for cell in row:
            while column < len(line) and line[column] is not EMPTY:
                column += 1
            end = column + cell.column_span
            covered_lines = grid[number : number + cell.row_span]
            n_places += cell.column_span * len(covered_lines)
            if n_places > _MAX_PLACES:
                raise Unreadable("too long", "split it", f"a table of over {_MAX_PLACES:,} cells")
            for covered in covered_lines:
                covered += [EMPTY] * (end - len(covered))
                for covered_column in range(column, end):
                    if covered[covered_column] is EMPTY:
                        covered[covered_column] = cell
            column = end
    return _padded(grid)


def of_texts(rows: Iterable[Sequence[str]]) -> list[list[Cell]]:
    """A grid without spans and marked headings; shorter rows are filled up."""
    return _padded([list(map(_cell, row)) for row in rows])


def _cell(text: str) -> Cell:
    text = clean(text)
    return Cell(text) if text else EMPTY


def _padded(grid: list[list[Cell]]) -> list[list[Cell]]:
    width = max(map(len, grid), default=0)
    for row in grid:
        row += [EMPTY] * (width - len(row))
    return grid


def texts_of(row: Row) -> list[str]:
    """The texts of the different cells of a row."""
    return [cell.text for cell in dict.fromkeys(row) if cell.text]


def size(row: Row) -> int:
    """Number of different cells of a row that have a text."""
    return len(texts_of(row))


def table(grid: Grid) -> Iterator[Piece]:
    """The lines of a table in a text.

    A text that stands alone in the first row is the table's title. Headings are what the document
    marks as such, otherwise the first rows where they look like headings.

    Example:
        >>> rows = [["", "2024", "2025"], ["Sales", "10", "12"], ["Costs", "7", "8"]]
        >>> [piece.text for piece in table(of_texts(rows))]
        ['Sales: 2024: 10; 2025: 12', 'Costs: 2024: 7; 2025: 8']
    """
    rows = list(filter(size, grid))
    width = max(map(len, rows), default=0)
    has_marked_title = False
    while len(rows) > 1 and width > 2 and _is_title(rows[0]):
        title, *rows = rows
        yield Piece("paragraph", texts_of(title)[0])
        has_marked_title = _is_marked(title)
    # Where a title is marked as a heading, others would be, too.
    is_without_headings = has_marked_title and not _is_marked(rows[0])
    n_headings = 0 if is_without_headings else _n_headings(rows)
    yield from lines(rows[:n_headings], rows[n_headings:])


def _is_title(row: Row) -> bool:
    if len({*texts_of(row)}) != 1:
        return False
    return all(cell.text for cell in row) or not any(cell.is_heading for cell in row)


def _n_headings(rows: Grid) -> int:
    n_marked = len(list(takewhile(_is_marked, rows)))
    if 0 < n_marked < len(rows):
        while n_marked < len(rows) - 1 and _reaches(rows[n_marked - 1], rows[n_marked]):
            n_marked += 1
        return n_marked
    has_row_heading = bool(rows) and rows[0][0].is_heading and not n_marked
    return 0 if has_row_heading else guessed_headings(rows)


def _is_marked(row: Row) -> bool:
    return all(cell.is_heading for cell in row if cell.text)


def guessed_headings(rows: Grid) -> int:
    """Number of first rows that look like headings: more than one if cells are merged; none where a
    label that is marked as a heading stands before what is not.
    """
    if rows and _n_headings_before(rows[0]) == 1:
        return 0
    depth = 1
    while depth < len(rows) - 1 and _goes_on(rows[depth - 1], rows[depth]):
        depth += 1
    labels = [row[0].text for row in rows[depth:]]
    if depth > 1 and _begin_with_labels(rows, depth):
        return 0
    return depth if is_header(column_names(rows[:depth]), labels) else 0


def _begin_with_labels(rows: Grid, depth: int) -> bool:
    """Whether the first cells are labels of several rows, that of the supposed headings, too."""
    first = rows[0][0]
    is_parted = any(cell.column_span > 1 for row in rows[:depth] for cell in row)
    covers_rows = any(row[0].row_span > 1 for row in rows[depth:])
    return first.row_span > 1 and covers_rows and not is_parted


def _reaches(upper: Row, lower: Row) -> bool:
    """Whether a cell covers places of both rows."""
    return any(a is b and bool(a.text) for a, b in zip(upper, lower, strict=True))


def _goes_on(upper: Row, lower: Row) -> bool:
    """Whether a row of headings goes on in the next: some cells are parted there, and all others
    reach into it or have nothing below.
    """
    upper = _spread(upper, lower)
    parted = set[Cell]()
    for above, below in zip(pairwise(upper), pairwise(lower), strict=True):
        if above[0] is above[1] and above[0].text and below[0] is not below[1]:
            parted.add(above[0])
    numbers = list(filter(is_number, texts_of(lower)))
    are_values = bool(numbers) and not are_counted(numbers)
    if not parted or size(upper) < 2 or are_values:
        return _reaches(upper, lower)
    for cell, cell_below in zip(upper, lower, strict=True):
        ends_here = cell is not cell_below and cell.text and cell_below.text
        if ends_here and cell not in parted:
            return False
    return True


def _spread(upper: Row, lower: Row) -> list[Cell]:
    """A row of headings in which a text also stands at the empty places to its right, where cells
    are not merged but meant to be.
    """
    row = list(upper)
    if max(cell.column_span for cell in upper) > 1:
        return row
    for column in range(1, len(row)):
        left = row[column - 1]
        is_empty_above_text = not row[column].text and lower[column].text
        is_left_meant = left.text and left is not lower[column - 1] and lower[column - 1].text
        if is_empty_above_text and is_left_meant:
            row[column] = left
    return row


def column_names(headings: Grid) -> list[str]:
    """The name of each column: the different texts above it."""
    spread = [*map(_spread, headings, headings[1:]), *headings[-1:]]
    columns = zip(*spread, strict=True)
    return [" ".join(dict.fromkeys(texts_of(column))) for column in columns]


def lines(headings: Grid, body: Grid) -> Iterator[Piece]:
    """Each row as "column: value; column: value"; cells without a value are left out.

    A label stands before the first column: the first cells where their columns have no name, below
    a text that stands alone in a row. Cells in which separators occur are quoted.

    Example:
        >>> headings, body = of_texts([["Week", "Room"]]), of_texts([["2", "37"], ["3", ""]])
        >>> [piece.text for piece in lines(headings, body)]
        ['Week: 2; Room: 37', 'Week: 3']
    """
    names = [name.rstrip(":") for name in column_names(headings)]
    are_named = any(names)
    n_unnamed = len(list(takewhile(lambda name: not name, names)))
    if are_named and body and all(map(_is_group, body)):
        # No row below names the columns.
        yield from lines((), headings)
    group = ""
    for row, following in pairwise([*body, ()]):
        if are_named and _is_group(row):
            group = ""
            if following and not _is_group(following):
                group = row[0].text
            else:
                yield Piece("row", row[0].text)
            continue
        n_labels = n_unnamed if are_named else _n_headings_before(row)
        if not size(row[n_labels:]):
            n_labels = 0
        labels = filter(None, [group, *texts_of(row[:n_labels])])
        label = ", ".join(dict.fromkeys(labels))
        text = _line(names[n_labels:], row[n_labels:], has_label=bool(label))
        if text:
            yield Piece("row", f"{quoted(label.rstrip(':'))}: {text}" if label else text)


def _is_group(row: Row) -> bool:
    """Whether one short text stands across all columns."""
    return row[0].column_span >= len(row) > 1 and len(row[0].text) <= MAX_NAME_CHARS


def _n_headings_before(row: Row) -> int:
    """Number of first cells that are marked as headings, if others follow."""
    n_headings = len(list(takewhile(lambda cell: cell.is_heading, row)))
    return n_headings if n_headings < len(row) else 0


def _line(names: Sequence[str], row: Row, *, has_label: bool) -> str:
    parts: list[str] = []
    before: tuple[str, Cell] | None = None
    for column, cell in enumerate(row):
        name = names[column] if column < len(names) else ""
        if not cell.text or (name, cell) == before:
            continue
        before = (name, cell)
        if name and name != cell.text:
            parts.append(f"{quoted(name)}: {quoted(cell.text)}")
        else:
            parts.append(quoted(cell.text, is_named=has_label))
    if len(parts) == 1 and not has_label and not any(names):
        return texts_of(row)[0]
    return "; ".join(parts)


def is_header(row: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether a row is a header: short names for most columns, most of them distinct; no numbers
    except years and counts. The first may be missing where it stands above the names of rows.

    Args:
        labels: the first text of each row below.

    Example:
        >>> is_header(["Country", "2010", "2020"], ["Norway"])
        True
        >>> is_header(["Norway", "4.9", "5.4"], ["Sweden"])
        False
    """
    names = list(filter(None, row))
    # Names may be questions and abbreviations, and no other sentences.
    are_sentences = any(name.endswith(".") and name.count(" ") > 2 for name in names)
    if not names or not labels or max(map(len, names)) > MAX_NAME_CHARS or are_sentences:
        return False
    has_corner = not row[0] and all(labels)
    if 2 * len(names) <= len(row) - has_corner:
        return False
    # "Name:" beside the name itself.
    if names[0].endswith(":") and not names[-1].endswith(":"):
        return False
    numbers = list(filter(is_number, names))
    begins_with_number = is_number(names[0]) and not has_corner
    if numbers and (begins_with_number or not are_counted(numbers)):
        return False
    return 2 * len(set(names)) > len(names)


def are_counted(numbers: Sequence[str]) -> bool:
    """Whether they are at least two years, dates, or the like, or whole numbers in equal steps."""
    if len(numbers) < 2 or not all(map(str.isdecimal, numbers)):
        return len(numbers) > 1 and all(map(_MEASURED.fullmatch, numbers))
    values = list(map(int, numbers))
    steps = {after - before for before, after in pairwise(values)}
    are_years = min(values) >= 1500 and max(values) <= 2200
    return 0 not in steps and (len(steps) == 1 or are_years)


def is_number(text: str) -> bool:
    """Whether a text is a date, a time, a truth value, or a number, with or without separators of
    thousands, a percent sign, the sign of a currency, or a unit.
    """
    try:
        float(text.strip(" %$€£¥()").replace(",", ""))
    except ValueError:
        return _MEASURED.fullmatch(text) is not None
    return True
