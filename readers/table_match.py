"""How well the cells of tables fit a question, by the words of their rows and columns.

A reader trained on prose does not see that a value belongs to what stands left of it and above it.
Cells whose row and column hold the question's words therefore rank higher.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping

from rag.data.table_text import table_rows

_WORD = re.compile(r"\w+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        """a an the of in on at to for from by with and or is are was were be been do does did has have had
        can could will would should may might must what which who whom whose when where why how it its this
        that these those i you we they he she my your our their his her me us them there not if as about
        into than then so many much"""
    )
)


def content_words(text: str) -> frozenset[str]:
    """The words of a text without function words, in lower case and without common endings.

    Example:
        >>> sorted(content_words("When was the bridge opened?"))
        ['bridge', 'open']
    """
    words = (word for word in _WORD.findall(text.lower()) if word not in _FUNCTION_WORDS)
    return frozenset(_stem(word) for word in words)


def _stem(word: str) -> str:
    ending = next(
        (e for e in ("ing", "ed", "es", "s") if word.endswith(e) and len(word) >= len(e) + 3), ""
    )
    return word.removesuffix(ending)


class TableMatch:
    """The tables in the passages of one question.

    Args:
        content: the question's content words, see `content_words`.
        texts: the passages, by their place in the question's list.
    """

    def __init__(self, content: frozenset[str], texts: Mapping[int, str]) -> None:
        self._content = content
        self._rows = {place: list(table_rows(text)) for place, text in texts.items()}
        rows = [row for own in self._rows.values() for row in own]
        counts = Counter(word for row in rows for word in content & content_words(row.line))
        columns = " ".join({cell.column for row in rows for cell in row.cells})
        self._is_empty = not counts and content.isdisjoint(content_words(columns))
        self._weights = {
            word: math.log((len(rows) + 1) / (count + 0.5)) for word, count in counts.items()
        }
        self._whole = math.fsum(self._weights.values()) or 1.0

    def __bool__(self) -> bool:
        """Whether a question's word stands in a table."""
        return not self._is_empty

    def __call__(self, place: int, start: int, end: int) -> float:
        """How well the cell fits that characters `start` to `end` of a passage's text are in, from
        0 to 3.

        r + c + r·c, where r is the share of the question's words that the row holds outside of the
        cell, rare words weighing more, and c the share of the words of the column's name that the
        question holds. 0 outside of tables.

        Example:
            >>> text = " | 2019 | 2018\\nSales | 5 | 4\\nCosts | 3 | 2"
            >>> match = TableMatch(content_words("What were the sales in 2018?"), {0: text})
            >>> [round(match(0, at, at + 1), 1) for at in map(text.rindex, "5432")]
            [1.0, 3.0, 0.0, 1.0]
        """
        rows = self._rows.get(place, [])
        number = bisect_right(rows, start, key=lambda row: row.start) - 1
        cells = rows[number].cells if number >= 0 else ()
        cell = next((cell for cell in cells if cell.start <= start < end <= cell.end), None)
        if cell is None:
            return 0.0
        line, begin = rows[number].line, rows[number].start
        shared = self._content & content_words(
            f"{line[: cell.start - begin]} {line[cell.end - begin :]}"
        )
        of_row = (
            math.fsum(self._weights[word] for word in shared) / self._whole
        )  # in whatever order
        names = content_words(cell.column)
        of_column = len(self._content & names) / max(1, len(names))
        return of_row + of_column + of_row * of_column
