"""Lines, words and ruled lines of a page of a PDF, by PDFium.

Note:
    PDFium is not thread-safe and may then give empty text without an error: one document at a time.
"""

import ctypes
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rag.core.optional import require
from rag.data.documents.grid import Grid
from rag.data.documents.pdf_tables import Rule, Word

_LINE = re.compile(r"[^\s\ufffe](?:[^\r\n]*[^\s])?")
_WORD = re.compile(r"[^\s\x02\ufffe]+")
_CODE_FONTS = ("mono", "courier", "cmtt")
_BOLD_FONTS = ("bold", "black", "heavy", "cmbx", "demi")
# A bit of a font's flags.
_FIXED_PITCH = 1
_MAX_FONT_NAME = 128
# A font that is smaller has its size in the matrix of the text.
_MIN_FONT_SIZE = 2
# Of the paths of a page that may be ruled lines; drawings have more.
_MAX_POINTS = 2000

_Point = tuple[float, float]


@dataclass(slots=True)
class Line:
    """A line of a page: its places from the page's left lower corner, and its font size, in
    points.

    Attributes:
        page: number of the page, from 0.
        height: that of the page.
        words: none in lines of code, which are part of no table.
        level: that of a heading; 0 for other lines.
        table: a table is one line.
    """

    text: str
    page: int
    left: float
    top: float
    bottom: float
    size: float
    is_code: bool
    is_bold: bool
    height: float
    words: Sequence[Word] = ()
    level: int = 0
    table: Grid = ()


class PageReader:
    """Reads the page of a document that has this number, from 0."""

    def __init__(self, document: Any, number: int) -> None:
        self._raw = require("pypdfium2", "docs").raw
        self._number = number
        self._page = document[number]
        # What is filled in a form, or written over the page, becomes a part of it.
        code = self._raw.FPDFPage_Flatten(self._page, self._raw.FLAT_NORMALDISPLAY)
        if code == self._raw.FLATTEN_SUCCESS:
            self._page = document[number]
        self._text_page = self._page.get_textpage()

    def lines(self) -> list[Line]:
        """The characters of the page, cut at line ends; lines that are no code are cut into words.

        Place and size are those of a line's first visible character.
        """
        n_chars = max(self._text_page.count_chars(), 0)
        buffer = (ctypes.c_ushort * (n_chars + 1))()
        self._raw.FPDFText_GetText(self._text_page.raw, 0, n_chars, buffer)
        # A character for each of PDFium's, which are halves of surrogates, too.
        units = "".join(map(chr, buffer[:n_chars]))
        height = self._page.get_height()
        lines: list[Line] = []
        for match in _LINE.finditer(units):
            first = match.start()
            left, bottom, _, top = self._text_page.get_charbox(first)
            is_code, is_bold = self._font_kind(first, match.end() - 1)
            size = _half_points(self._raw.FPDFText_GetFontSize(self._text_page, first))
            if size <= _MIN_FONT_SIZE:
                size = max(_half_points((top - bottom) * 1.4), 1)
            text = _decoded(match[0])
            words: list[Word] = []
            if not is_code:
                # Ligatures become letters.
                text = unicodedata.normalize("NFKC", text)
                words = list(self._words(match, len(lines), size))
            place = left, top, bottom
            lines.append(Line(text, self._number, *place, size, is_code, is_bold, height, words))
        return lines

    def _font_kind(self, first: int, last: int) -> tuple[bool, bool]:
        """Whether characters have a fixed pitch, and whether they are bold, by three of them."""
        name = ctypes.create_string_buffer(_MAX_FONT_NAME)
        flags = ctypes.c_int()
        is_code = True
        is_bold = True
        for sample in {first, (first + last) // 2, last}:
            self._raw.FPDFText_GetFontInfo(
                self._text_page, sample, name, _MAX_FONT_NAME, ctypes.byref(flags)
            )
            font = name.value.decode("utf-8", "replace").lower()
            has_code_name = any(mark in font for mark in _CODE_FONTS)
            is_code &= has_code_name or bool(flags.value & _FIXED_PITCH)
            is_bold &= any(mark in font for mark in _BOLD_FONTS)
        return is_code, is_bold

    def _words(self, line: re.Match[str], number: int, size: float) -> Iterator[Word]:
        # The letters stand on the base line, while their boxes differ.
        base = ctypes.c_double()
        ignored = ctypes.c_double()
        for match in _WORD.finditer(line[0]):
            first = line.start() + match.start()
            last = line.start() + match.end() - 1
            self._raw.FPDFText_GetCharOrigin(self._text_page, first, ignored, base)
            left = self._text_page.get_charbox(first)[0]
            right = self._text_page.get_charbox(last)[2]
            text = match[0]
            if not text.isascii():
                text = unicodedata.normalize("NFKC", _decoded(text))
            yield Word(text, left, right, base.value + size / 4, size, number)

    def rules(self) -> tuple[list[Rule], list[Rule]]:
        """The horizontal and the vertical ruled lines of the page."""
        horizontal: list[Rule] = []
        vertical: list[Rule] = []
        for shape in self._page.get_objects(filter=[self._raw.FPDF_PAGEOBJ_PATH]):
            n_points = self._raw.FPDFPath_CountSegments(shape)
            if max(n_points, len(horizontal) + len(vertical)) > _MAX_POINTS:
                continue
            for (x, y), (end_x, end_y) in self._strokes(shape, n_points):
                if abs(y - end_y) < 1 <= abs(x - end_x):
                    horizontal.append(Rule(y, *sorted((x, end_x))))
                elif abs(x - end_x) < 1 <= abs(y - end_y):
                    vertical.append(Rule(x, *sorted((y, end_y))))
        return horizontal, vertical

    def _strokes(self, shape: Any, n_points: int) -> Iterator[tuple[_Point, _Point]]:
        """The two ends of each straight part of a path, and of a curve as if it were straight."""
        matrix = shape.get_matrix()
        x = ctypes.c_float()
        y = ctypes.c_float()
        start: _Point = (0.0, 0.0)
        last: _Point = (0.0, 0.0)
        for number in range(n_points):
            segment = self._raw.FPDFPath_GetPathSegment(shape, number)
            self._raw.FPDFPathSegment_GetPoint(segment, ctypes.byref(x), ctypes.byref(y))
            point: _Point = matrix.on_point(x.value, y.value)
            kind = self._raw.FPDFPathSegment_GetType(segment)
            if number == 0 or kind == self._raw.FPDF_SEGMENT_MOVETO:
                start = point
            else:
                yield last, point
            if self._raw.FPDFPathSegment_GetClose(segment):
                yield point, start
            last = point


def _half_points(size: float) -> float:
    return round(size * 2) / 2


def _decoded(units: str) -> str:
    """A text whose characters are the units of UTF-16."""
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
