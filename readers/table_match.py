"""How well the cells of tables fit a question, by the words of their rows and columns.

A reader trained on prose does not see that a value belongs to what stands left of it and above it. Cells
whose row and column hold the question's words therefore rank higher.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from rag.data.table_text import TextCell, TextRow, table_rows
from readers.answer_forms import content_words

_FULL = 2.999
_OPERATIONS = content_words(
    """most least highest lowest largest smallest biggest longest shortest oldest youngest earliest latest
    fastest slowest best worst more less fewer greater higher lower larger smaller before after next previous
    prior first last total sum combined average difference times consecutive besides except both only same
    another else above below"""
)


class TableMatch:
    """The tables in the passages of one question.

    Args:
        content: the question's content words, see `content_words`.
        texts: the passages.
    """

    def __init__(self, content: frozenset[str], texts: Sequence[str]) -> None:
        self._content = content
        self._rows = [list(table_rows(text)) for text in texts]
        self._starts = [[row.start for row in rows] for rows in self._rows]
        rows = [(place, row) for place, found in enumerate(self._rows) for row in found]
        lines = [content & content_words(row.line) for _, row in rows]
        columns = " ".join({cell.column for _, row in rows for cell in row.cells})
        counts = Counter(word for line in lines for word in line)
        self._full = [row for row, line in zip(rows, lines, strict=True) if line == counts.keys()]
        self._known: dict[tuple[int, int], float] = {}
        self._is_empty = not counts and content.isdisjoint(content_words(columns))
        self._weights = {word: math.log((len(lines) + 1) / (count + 0.5)) for word, count in counts.items()}
        self._whole = math.fsum(self._weights.values()) or 1.0

    def only_cell(self) -> tuple[int, TextCell] | None:
        """The one cell whose row holds all of the question's words that the tables hold, outside of it, and
        whose column's name is in the question, with the place of its passage.

        None if several do, if that is one word of several, or if the question compares or counts, which no
        single cell answers.

        Example:
            >>> text = "Plan: Team; Users: 25\\nPlan: Business; Users: 200"
            >>> questions = "How many users has the Business plan?", "How many more users has Business?"
            >>> found = [TableMatch(content_words(question), [text]).only_cell() for question in questions]
            >>> found[0][1].value, found[1]
            ('200', None)
        """
        cells = ((place, cell) for place, row in self._full for cell in row.cells if cell.value)
        found = [(place, cell) for place, cell in cells if self(place, cell.start, cell.end) > _FULL]
        if len(found) != 1:
            return None
        known = self._content & (self._weights.keys() | content_words(found[0][1].column))
        is_chance = len(known) < 2 and known != self._content
        return None if is_chance or (self._content & _OPERATIONS) - known else found[0]

    def __bool__(self) -> bool:
        """Whether a question's word stands in a table."""
        return not self._is_empty

    def __call__(self, place: int, start: int, end: int) -> float:
        """How well the cell fits that characters `start` to `end` of a passage's text are in, from 0 to 3.

        r + c + r·c, where r is the share of the question's words that the row holds outside of the cell, rare
        words weighing more, and c the share of the words of the column's name that the question holds. 0
        outside of tables.

        Example:
            >>> text = " | 2019 | 2018\\nSales | 5 | 4\\nCosts | 3 | 2"
            >>> match = TableMatch(content_words("What were the sales in 2018?"), [text])
            >>> [round(match(0, at, at + 1), 1) for at in map(text.rindex, "5432")]
            [1.0, 3.0, 0.0, 1.0]
        """
        number = bisect_right(self._starts[place], start) - 1
        if number < 0:
            return 0.0
        row = self._rows[place][number]
        cell = next((cell for cell in row.cells if cell.start <= start < end <= cell.end), None)
        if cell is None:
            return 0.0
        if (place, cell.start) not in self._known:
            of_row, of_column = self._row_match(row, cell), self._column_match(cell)
            self._known[place, cell.start] = of_row + of_column + of_row * of_column
        return self._known[place, cell.start]

    def _row_match(self, row: TextRow, cell: TextCell) -> float:
        before, after = row.line[: cell.start - row.start], row.line[cell.end - row.start :]
        found = self._content & content_words(f"{before} {after}")
        return math.fsum(self._weights[word] for word in found) / self._whole  # in whatever order

    def _column_match(self, cell: TextCell) -> float:
        names = content_words(cell.column)
        return len(self._content & names) / max(1, len(names))
