"""Questions about the cells of tables; see `rag.data.table_text` for their forms in text."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rag.data.table_text import NO_NAME, TextCell, table_rows

_TIME = re.compile(r"(?:19|20)\d\d|(?:January|February|March|April|May|June|July|August|September|October"
                   r"|November|December|Q[1-4])\b")  # fmt: skip
_AT_TIME = ("What was the {0} in {1}?", "What is the {0} for {1}?", "How much was the {0} in {1}?",
            "What was the amount of {0} in {1}?", "{0} {1}")  # fmt: skip
_OF = ("What is the {1} of {0}?", "What {1} does {0} have?", "What is the {1} for {0}?", "{0} {1}")
_LONGEST_LABEL, _LONGEST_VALUE = 14, 8  # words
_PATH = " > "  # between the levels of a header


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
    for row in table_rows(text):
        if row.named and (len(row.cells) == 1 or not all(cell.column and cell.value for cell in row.cells)):
            continue
        label, cells = row.label, row.cells
        if not label:  # the first cell is the label
            label, cells = cells[0].value, cells[1:]
        for cell in cells:
            yield from _cell(label, cell)


def cell_question(cell: Cell, draw: random.Random) -> str:
    """A question that the cell answers."""
    if _TIME.search(cell.column):
        return draw.choice(_AT_TIME).format(_inside(cell.row), cell.column)
    return draw.choice(_OF).format(_inside(cell.row), _inside(cell.column))


def _cell(label: str, cell: TextCell) -> Iterator[Cell]:
    row, column = (
        re.sub(r"(?:\s*\(\w{1,2}\))+$", "", one.split(_PATH)[-1]).strip(" :,.*")
        for one in (label, cell.column)
    )
    is_value = any(map(str.isalnum, cell.value)) and len(cell.value.split()) <= _LONGEST_VALUE
    if is_value and _is_label(row) and column and not NO_NAME.fullmatch(column):
        yield Cell(row, column, cell.value, cell.start)


def _is_label(text: str) -> bool:
    return any(map(str.isalpha, text)) and len(text) > 1 and len(text.split()) <= _LONGEST_LABEL


def _inside(label: str) -> str:
    """A label as it stands inside a sentence."""
    return label[0].lower() + label[1:] if label[1:2].islower() or label[1:2] == " " else label
