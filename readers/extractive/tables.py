"""How well the cells of tables fit a question, by the words of their rows and columns.

A reader trained on prose does not see that a value belongs to what stands left of it and above it.
Cells whose row and column hold the question's words therefore rank higher.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain

from rag.data.table_text import TextRow, table_rows
from readers.words import content_words


class TableMatch:
    """The tables in the passages of one question.

    Args:
        content: the question's content words, see `content_words`.
        texts: the texts of the passages, by the passage's number.
    """

    def __init__(self, content: frozenset[str], texts: Mapping[int, str]) -> None:
        self._content = content
        self._rows = {number: _rows_of(text) for number, text in texts.items()}
        columns = set[str]()
        counts = Counter[str]()
        rows = list(chain.from_iterable(self._rows.values()))
        for row in rows:
            counts.update(content & content_words(row.line))
            columns.update(cell.column for cell in row.cells)
        self._is_asked = bool(counts or content & content_words(" ".join(columns)))
        # A word of few rows tells more.
        self._weights = {
            word: math.log((len(rows) + 1) / (count + 0.5)) for word, count in counts.items()
        }
        self._total = math.fsum(self._weights.values()) or 1.0

    def __bool__(self) -> bool:
        """Whether a question's word stands in a table."""
        return self._is_asked

    def __call__(self, passage: int, start: int, end: int) -> float:
        """How well the cell fits that characters `start` to `end` of a passage's text are in, from
        0 to 3.

        r + c + r·c, where r is the share of the question's words that the row holds outside of the
        cell, rare words weighing more, and c the share of the words of the column's name that the
        question holds. 0 outside of tables.

        Example:
            >>> text = " | 2019 | 2018\\nSales | 5 | 4\\nCosts | 3 | 2"
            >>> content = content_words("What were the sales in 2018?")
            >>> match = TableMatch(content, {0: text})
            >>> [round(match(0, at, at + 1), 1) for at in map(text.rindex, "5432")]
            [1.0, 3.0, 0.0, 1.0]
        """
        rows = self._rows.get(passage, ())
        number = bisect_right(rows, start, key=lambda row: row.start) - 1
        if number < 0:
            return 0.0
        row = rows[number]
        for cell in row.cells:
            if cell.start <= start < end <= cell.end:
                break
        else:
            return 0.0
        before = row.line[: cell.start - row.start]
        behind = row.line[cell.end - row.start :]
        shared = self._content & content_words(f"{before} {behind}")
        row_fit = math.fsum(self._weights[word] for word in shared) / self._total
        names = content_words(cell.column)
        column_fit = len(self._content & names) / max(1, len(names))
        return row_fit + column_fit + row_fit * column_fit


@lru_cache(maxsize=256)
def _rows_of(text: str) -> tuple[TextRow, ...]:
    """The rows of tables in a text, which is read again in every wave."""
    return tuple(table_rows(text))
