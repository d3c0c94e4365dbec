"""Tables in plain text, in both forms of rows: "column: value; column: value" and "value |
value".

A name or a value in which ": ", "; " or "|" occurs is quoted: “a; b”.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat, starmap, zip_longest

_RULE = re.compile(r"[\s|:+=-]*")
# A unit or a remark, which tells no column from another.
NO_NAME = re.compile(
    r"(?:\(?(?:in )?(?:thousands?|millions?|billions?)\b.*|[\W\d_]{0,3}|\W*[$€£¥]\w{0,3}\W*|notes?)",
    re.IGNORECASE,
)
_YEAR = re.compile(r"(?:FY ?)?(?:19|20)\d\d\W{0,3}\w?\W?")
_NUMBER = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*")
# Share of the cells of a row that have a column's name: a passage may begin inside a row.
_MIN_NAMED = 0.6
# Of the column's name and of the value, in a row of one cell.
_MAX_CHARS = 60
_SEPARATOR = re.compile(r"[:;] |\|")
_CELL_END = re.compile(r"; |\|")
_QUOTED = re.compile(r"(?:^|(?<=[:;] ))“[^“”]*”(?=$|[:;] )")


def quoted(text: str, *, is_named: bool = True) -> str:
    """A name or a value of a cell as it stands in a row.

    Args:
        is_named: whether it is one of the two; a cell without a name may be "name: value" itself.

    Example:
        >>> quoted("a; b"), quoted("a, b")
        ('“a; b”', 'a, b')
    """
    if (_SEPARATOR if is_named else _CELL_END).search(text) is None:
        return text
    inner = text.replace("“", '"').replace("”", '"')
    return f"“{inner}”"


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
    is_below_header = False
    start = 0
    for line in text.split("\n"):
        masked = _masked(line)
        if "|" not in masked:
            header = []
            is_below_header = False
            yield from _named(line, masked, start)
        elif not _RULE.fullmatch(line):
            cells = _split(line, start, "|")
            # Bars at both ends part nothing.
            if line.strip()[0] == "|" and line.strip()[-1] == "|" and len(cells) > 3:
                cells = cells[1:-1]
            names = [name for name, _ in cells]
            goes_on = not header or not names[0]
            if not is_below_header and goes_on and _is_header(names):
                header = list(starmap(_lower, zip_longest(header, names, fillvalue="")))
            else:
                is_below_header = True
                columns = chain(header, repeat(""))
                row = tuple(TextCell(next(columns), *cell) for cell in cells)
                yield TextRow(start, line, "", row, named=False)
        start += len(line) + 1


def cell_spans(line: str) -> list[tuple[int, int]]:
    """Where the cells of a row begin and end, their columns' names included.

    Example:
        >>> [line[a:b] for line in ["Item: tea; Note: “a; b”"] for a, b in cell_spans(line)]
        ['Item: tea', 'Note: “a; b”']
    """
    return [(start, start + len(part)) for part, start in _split(_masked(line), 0, "; ")]


def row_label(line: str) -> str:
    """What names a row: its label, or else its first cell where that is short; "" without one."""
    row = next(table_rows(line), None)
    if row is None:
        return ""
    start, end = cell_spans(line)[0]
    label = row.label or line[start:end]
    return label if len(label) <= _MAX_CHARS else ""


def _masked(line: str) -> str:
    """A line in which the separators within quotes are another character."""
    if "“" not in line:
        return line
    return _QUOTED.sub(lambda match: re.sub("[:;|]", "\0", match[0]), line)


def _named(line: str, masked: str, start: int) -> Iterator[TextRow]:
    """The row "column: value; column: value", perhaps with a label and a colon before it."""
    if ": " not in masked:
        return
    label = ""
    cells: list[TextCell] = []
    for part, offset in _split(masked, 0, "; "):
        column, mark, value = part.rpartition(": ")
        if not cells:
            above, _, column = column.rpartition(": ")
            label = _unquoted(line[offset : offset + len(above)])
        begin = offset + len(part) - len(value)
        name_end = begin - len(mark)
        name = _unquoted(line[name_end - len(column) : name_end])
        text = _unquoted(line[begin : begin + len(value)])
        is_quoted = len(text) < len(value)
        cells.append(TextCell(name, text, start + begin + is_quoted))
    n_named = sum(bool(cell.column and cell.value) for cell in cells)
    longest = max(len(cells[0].column), len(cells[0].value))
    if n_named < _MIN_NAMED * len(cells) or (len(cells) == 1 and longest > _MAX_CHARS):
        return
    yield TextRow(start, line, label, tuple(cells), named=True)


def _unquoted(text: str) -> str:
    return text[1:-1] if text.startswith("“") and text.endswith("”") else text


def _is_header(names: Sequence[str]) -> bool:
    """Whether a row has names, and no number but years, behind its first cell."""
    values = list(filter(None, names[1:]))
    for value in values:
        if _NUMBER.fullmatch(value) and not _YEAR.fullmatch(value):
            return False
    return bool(values)


def _lower(above: str, name: str) -> str:
    """Of a header of two rows the lower name, unless it is only a unit."""
    is_unit = above != "" and NO_NAME.fullmatch(name) is not None
    return above if is_unit or not name else name


def _split(line: str, start: int, by: str) -> list[tuple[str, int]]:
    """The parts of a line without the blanks around them, and their places in the text."""
    placed: list[tuple[str, int]] = []
    for part in line.split(by):
        placed.append((part.strip(), start + len(part) - len(part.lstrip())))
        start += len(part) + len(by)
    return placed
