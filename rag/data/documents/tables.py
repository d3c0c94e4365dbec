"""Tables: each row a line that names its columns."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rag.data.documents.blocks import Piece, clean

MAX_NAME_CHARS = 80  # of one column's name


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
    """Rows of a table in a text, whose first row is its header if it looks like one.

    A single text in the first row, which may be repeated where cells are merged, is the table's title.
    """
    filled = [row for row in cells if any(cell.strip() for cell in row)]
    width = max(map(len, filled), default=0)
    while len(filled) > 1 and width > 2 and len(title := set(filter(None, map(clean, filled[0])))) == 1:
        yield Piece("paragraph", title.pop(), page=page)
        filled = filled[1:]
    if is_header(filled[0], filled[1:]) if filled else False:
        yield from rows(filled[1:], filled[0], page=page)
    else:
        yield from rows(filled, page=page)


def is_header(row: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether a row is a header: short names for most columns, no numbers except years and counts.

    The names must differ from the values below; all names are distinct, or half of them are and some stand
    above numbers.

    Example:
        >>> is_header(["Country", "2010", "2020"], [["Norway", "4.9", "5.4"]])
        True
        >>> is_header(["Norway", "4.9", "5.4"], [["Sweden", "9.4", "10.4"]])
        False
    """
    names = [name for cell in row if (name := clean(cell))]
    numbers = [name for name in names if is_number(name)]
    if not below or 2 * len(names) <= len(row) or max(map(len, names)) > MAX_NAME_CHARS:
        return False
    if names[0].endswith(":") and not names[-1].endswith(":"):  # "Name:" beside the name itself
        return False
    if numbers and (is_number(names[0]) or not _are_counted(numbers)):
        return False
    if len(set(names)) == len(names):
        return True
    return 2 * len(set(names)) > len(names) and any(
        row[column].strip() and not is_number(row[column]) and _is_numeric(below, column)
        for column in range(len(row))
    )


def _are_counted(numbers: Sequence[str]) -> bool:
    """Whether they are at least two years, or whole numbers in equal steps."""
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
        return False
    values = list(map(int, numbers))
    steps = {b - a for a, b in pairwise(values)}
    return 0 not in steps and (len(steps) == 1 or all(1500 <= value <= 2200 for value in values))


def _is_numeric(cells: Sequence[Sequence[str]], column: int) -> bool:
    values = [row[column] for row in cells if column < len(row) and row[column].strip()]
    return bool(values) and 2 * sum(map(is_number, values)) > len(values)


def is_number(text: str) -> bool:
    """Whether a text is a number, with or without thousands separators and a percent sign."""
    try:
        float(text.strip().replace(",", "").rstrip("%"))
    except ValueError:
        return False
    return True
