"""Tables in plain text, in both forms of rows: "column: value; column: value" and "value |
value".
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_RULE = re.compile(r"[\s|:+=-]*")
NO_NAME = re.compile(  # a unit or a remark, which tells no column from another
    r"(?:\(?(?:in )?(?:thousands?|millions?|billions?)\b.*|[\W\d_]{0,3}|\W*[$€£¥]\w{0,3}\W*|notes?)",
    re.IGNORECASE,
)
_YEAR = re.compile(r"(?:FY ?)?(?:19|20)\d\d\W{0,3}\w?\W?")
_NUMBER = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*")
_NAMED = (
    0.6  # of the cells of a row have a column's name, at least: a passage may begin inside a row
)
_LONGEST = 60  # characters of the column's name and of the value, in a row of one cell


@dataclass(frozen=True, slots=True)
class TextCell:
    """The name of a cell's column ("" where none is stated), its value, and the value's place in
    the text.
    """

    column: str
    value: str
    start: int

    @property
    def end(self) -> int:
        """One past the value's last character."""
        return self.start + len(self.value)


@dataclass(frozen=True, slots=True)
class TextRow:
    """One line of a table, and where it starts in the text.

    Attributes:
        label: what stands before the first "column: value", "" if nothing does; rows with bars have
            none.
        named: whether it is written as "column: value; column: value".
    """

    start: int
    line: str
    label: str
    cells: tuple[TextCell, ...]
    named: bool


def table_rows(text: str) -> Iterator[TextRow]:
    """The rows of all tables in a text, without headers and rules.

    Rows with bars under no header, as in the later parts of a long table, have columns without
    names. One "name: value" alone in a line is a row, if it is short.

    Example:
        >>> [[(cell.column, cell.value) for cell in row.cells] for row in table_rows(" | 2019\\nSales | $5")]
        [[('', 'Sales'), ('2019', '$5')]]
        >>> [(row.label, row.cells[0].value) for row in table_rows("Ajax: Points: 61; Rank: 2")]
        [('Ajax', '61')]
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
                header = [
                    _lower(header, names, column) for column in range(max(len(header), len(names)))
                ]
            else:
                below = True
                columns = [*header, *[""] * len(cells)]
                row = tuple(
                    TextCell(name, *cell) for name, cell in zip(columns, cells, strict=False)
                )
                yield TextRow(start, line, "", row, named=False)
        start += len(line) + 1


def _named(line: str, start: int) -> Iterator[TextRow]:
    """The row "column: value; column: value", perhaps with a label and a colon before it."""
    if ": " not in line:
        return
    parts = _split(line, start, "; ")
    pairs = [part.rpartition(": ") for part, _ in parts]
    label, _, name = pairs[0][0].rpartition(": ")
    if sum(bool(column and value) for column, _, value in pairs) < _NAMED * len(parts):
        return
    if len(parts) == 1 and max(len(name), len(pairs[0][2])) > _LONGEST:
        return
    cells = [
        TextCell(column if number else name, value, place + len(part) - len(value))
        for number, ((column, _, value), (part, place)) in enumerate(zip(pairs, parts, strict=True))
    ]
    yield TextRow(start, line, label, tuple(cells), named=True)


def _is_header(names: Sequence[str]) -> bool:
    """Whether a row has names, and no number but years, behind its first cell."""
    values = [name for name in names[1:] if name]
    return bool(values) and all(
        _YEAR.fullmatch(name) or not _NUMBER.fullmatch(name) for name in values
    )


def _lower(upper: Sequence[str], names: Sequence[str], column: int) -> str:
    """Of a header of two rows the lower name, unless it is only a unit."""
    above, own = (row[column] if column < len(row) else "" for row in (upper, names))
    return above if not own or (above and NO_NAME.fullmatch(own)) else own


def _split(line: str, start: int, by: str) -> list[tuple[str, int]]:
    """The parts of a line without the blanks around them, and their places in the text."""
    placed = []
    for part in line.split(by):
        placed.append((part.strip(), start + len(part) - len(part.lstrip())))
        start += len(part) + len(by)
    return placed
