"""Questions about the cells of tables, in both forms of rows: "column: value; …" and "value | value"."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_RULE = re.compile(r"[\s|:+=-]*")
_NO_NAME = re.compile(  # a unit or a remark, which tells no column from another
    r"(?:\(?(?:in )?(?:thousands?|millions?|billions?)\b.*|[\W\d_]{0,3}|\W*[$€£¥]\w{0,3}\W*|notes?)",
    re.IGNORECASE,
)
_TIME = re.compile(r"(?:19|20)\d\d|(?:January|February|March|April|May|June|July|August|September|October"
                   r"|November|December|Q[1-4])\b")  # fmt: skip
_YEAR = re.compile(r"(?:FY ?)?(?:19|20)\d\d\W{0,3}\w?\W?")
_NUMBER = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*")
_AT_TIME = ("What was the {0} in {1}?", "What is the {0} for {1}?", "How much was the {0} in {1}?",
            "What was the amount of {0} in {1}?", "{0} {1}")  # fmt: skip
_OF = ("What is the {1} of {0}?", "What {1} does {0} have?", "What is the {1} for {0}?", "{0} {1}")
_LONGEST_LABEL, _LONGEST_VALUE = 14, 8  # words
_PATH = " > "  # between the levels of a header

_Placed = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell, the label of its row and the name of its column; `start` is its place in the text."""

    row: str
    column: str
    value: str
    start: int


def table_cells(text: str) -> Iterator[Cell]:
    """The cells in a text whose row has a label and whose column has a name.

    The label is the first cell's value, or what stands before a row's first "column: value". The rows of a
    table without its header, as in the later parts of a long one, give none.

    Example:
        >>> [(cell.row, cell.column, cell.value) for cell in table_cells(" | 2019 | 2018\\nSales | $5 | 4")]
        [('Sales', '2019', '$5'), ('Sales', '2018', '4')]
        >>> [(cell.row, cell.column, cell.value) for cell in table_cells("Team: Ajax; Points: 61")]
        [('Ajax', 'Points', '61')]
    """
    header: list[str] = []
    below = False  # whether a row of the table has been seen
    start = 0
    for line in text.split("\n"):
        if "|" not in line:
            header, below = [], False
            yield from _named(line, start)
        elif not _RULE.fullmatch(line):
            cells = _split(line, start, "|")
            if line.strip()[0] == "|" and line.strip()[-1] == "|" and len(cells) > 3:
                cells = cells[1:-1]
            names = [name for name, _ in cells]
            if not below and _is_header(names) and not (header and names[0]):
                header = [_lower(header, names, column) for column in range(max(len(header), len(names)))]
            else:
                below = True
                for column, (value, place) in enumerate(cells[1:], start=1):
                    if column < len(header):
                        yield from _cell(names[0], header[column], value, place)
        start += len(line) + 1


def cell_question(cell: Cell, draw: random.Random) -> str:
    """A question that the cell answers."""
    if _TIME.search(cell.column):
        return draw.choice(_AT_TIME).format(_inside(cell.row), cell.column)
    return draw.choice(_OF).format(_inside(cell.row), _inside(cell.column))


def _named(line: str, start: int) -> Iterator[Cell]:
    """The cells of a row "column: value; column: value", perhaps with a label and a colon before it."""
    parts = _split(line, start, "; ")
    pairs = [part.rpartition(": ") for part, _ in parts]
    if len(parts) < 2 or not all(name and value for name, _, value in pairs):
        return
    label, _, name = pairs[0][0].rpartition(": ")
    first = [] if label else [0]  # the column of the labels
    for number, ((column, _, value), (part, place)) in enumerate(zip(pairs, parts, strict=True)):
        if number not in first:
            column = name if number == 0 else column
            yield from _cell(label or pairs[0][2], column, value, place + len(part) - len(value))


def _cell(row: str, column: str, value: str, start: int) -> Iterator[Cell]:
    row, column = (
        re.sub(r"(?:\s*\(\w{1,2}\))+$", "", one.split(_PATH)[-1]).strip(" :,.*") for one in (row, column)
    )
    is_value = any(map(str.isalnum, value)) and len(value.split()) <= _LONGEST_VALUE
    if is_value and _is_label(row) and column and not _NO_NAME.fullmatch(column):
        yield Cell(row, column, value, start)


def _is_label(text: str) -> bool:
    return any(map(str.isalpha, text)) and len(text) > 1 and len(text.split()) <= _LONGEST_LABEL


def _is_header(names: Sequence[str]) -> bool:
    """Whether a row has names, and no number but years, behind its first cell."""
    values = [name for name in names[1:] if name]
    return bool(values) and all(_YEAR.fullmatch(name) or not _NUMBER.fullmatch(name) for name in values)


def _lower(upper: Sequence[str], names: Sequence[str], column: int) -> str:
    """Of a header of two rows the lower name, unless it is only a unit."""
    above, own = (row[column] if column < len(row) else "" for row in (upper, names))
    return above if not own or (above and _NO_NAME.fullmatch(own)) else own


def _split(line: str, start: int, by: str) -> _Placed:
    """The parts of a line without the blanks around them, and their places in the text."""
    placed: _Placed = []
    for part in line.split(by):
        placed.append((part.strip(), start + len(part) - len(part.lstrip())))
        start += len(part) + len(by)
    return placed


def _inside(label: str) -> str:
    """A label as it stands inside a sentence."""
    return label[0].lower() + label[1:] if label[1:2].islower() or label[1:2] == " " else label
