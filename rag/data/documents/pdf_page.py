"""Lines, words and ruled lines of a page of a PDF, by PDFium.

Note:
    PDFium is not thread-safe and may then give empty text without an error: one document at a time.
"""

import ctypes
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rag.core.optional import require
from rag.data.documents.grid import Grid
from rag.data.documents.pdf_tables import Rule, Word

# PDFium writes \x02 for a hyphen at the end of a line, and no end of the line behind it.
_LINE = re.compile(r"\S(?:[^\r\n\x02]*\S)?")
EAST_ASIAN = "[\u2e80-\u9fff\uff00-\uffef]"
"""Letters without blanks between words, and their punctuation, as a pattern."""
_WORD = re.compile(r"\S+")
# Hyphens that PDFium does not take for one.
_OTHER_HYPHEN = re.compile(r"[\u2010\u00ad](?<=[^\W\d_].)(?=\s*[\r\n])")
_LINE_END = re.compile(r"(?<=\S)\s*[\r\n]\s*(?=\S)")
# In place of the end of a line that letters of another height or size made within a word.
_JOINT = "\u2060"
# Places of ligatures in the two encodings of TeX; PDFium ends lines by \r\n.
_LIGATURE = re.compile(r"(?:[\v\f\x0e\x0f\x1b-\x1f]|\r(?!\n))(?:(?<=[a-z].)|(?=[a-z]))", re.DOTALL)
_LIGATURES = str.maketrans("\v\f\r\x0e\x0f\x1b\x1c\x1d\x1e\x1f", "ﬀﬁﬂﬃﬄﬀﬁﬂﬃﬄ")
# Accents that may be glyphs of their own, with the blanks around them; what is put behind a letter
# instead.
_ACCENTS = "`´ˆ˜¨¯˘˙˚˝ˇ¸"
_ACCENT = re.compile(f" ?([{_ACCENTS}]) ?")
_COMBINING = str.maketrans(
    _ACCENTS, "\u0300\u0301\u0302\u0303\u0308\u0304\u0306\u0307\u030a\u030b\u030c\u0327"
)
# Of glyphs between an accent and its letter: PDFium may put raised ones at the end of a line.
_MAX_DISTANCE = 200
# A word of letters that go from right to left; two letters of it that may be a ligature, which PDFium
# turns round.
_RTL = "[\u0590-\u08ff]"
_RIGHT_TO_LEFT = re.compile(f"{_RTL}{{2,}}")
_LAM_ALEF = re.compile(f"[\u0622\u0623\u0625\u0627]\u0644(?:(?<={_RTL}..)|(?={_RTL}))")
# A digit that may be an exponent, behind its sign.
_MAY_BE_EXPONENT = re.compile(rf"(?<=\d){_JOINT}*[-+\u2212⁻⁺]?[\d⁰¹²³⁴-⁹]")
# In font sizes: between letters of a word, at most; and between letters of a line, which stand by so
# much higher where they are exponents.
_MAX_GAP = 0.15
_MIN_STEP = 0.15
_MAX_STEP = 0.65
_CODE_FONT = re.compile("mono|courier|cmtt|sftt|nimbusmon")
# Followed by the beginning of a line: an oblique font may be that of a heading with a letter.
_BOLD_FONT = re.compile("bold|black|heavy|cmbx|sfbx|demi|no9l-medi|(?:ital|obli).*[A-H][.] $")
# A bit of a font's flags.
_FIXED_PITCH = 1
_MAX_FONT_NAME = 128
# Of the paths of a page that may be ruled lines; drawings have more.
_MAX_POINTS = 2000

_Point = tuple[float, float]


@dataclass(slots=True)
class Line:
    """A line of a page: its left end and its base line from the page's left lower corner, and its
    font size, in points.

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
    base: float
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

        Size and base line are those of most of three characters of a line.
        """
        code_of = self._raw.FPDFText_GetUnicode
        page = self._text_page.raw
        codes = [code_of(page, number) for number in range(self._text_page.count_chars())]
        # PDFium may know no letter for a glyph.
        text = "".join(map(chr, codes)).replace("\0", _JOINT)
        text = _LIGATURE.sub(self._ligature, text)
        text = _OTHER_HYPHEN.sub("\x02", text)
        # A character for each of PDFium's, which are halves of surrogates, too.
        units = _LINE_END.sub(self._between, text)
        letters = [unit.strip(_JOINT) for unit in units]
        for match in _ACCENT.finditer(units):
            units = self._move_accent(match, units, letters)
        for match in (*_RIGHT_TO_LEFT.finditer(units), *_LAM_ALEF.finditer(units)):
            first, end = match.span()
            # The last letter stands right of the first, or both are a single glyph.
            if self._step(first, end - 1) >= self._step(end - 1, first):
                letters[first:end] = reversed(letters[first:end])
        for match in _MAY_BE_EXPONENT.finditer(units):
            gap, step = self._step(match.start() - 1, match.end() - 1)
            # In text that is turned, the gap is less.
            is_raised = gap > -_MAX_GAP and _MIN_STEP < step < _MAX_STEP
            if is_raised or not match[0][-1].isdecimal():
                letters[match.start()] = "^" + letters[match.start()]
        height = self._page.get_height()
        lines: list[Line] = []
        for match in _LINE.finditer(units):
            first = match.start()
            left = self._text_page.get_charbox(first)[0]
            last = match.end() - 1
            middle = (first + last) // 2
            while units[middle].isspace():
                middle += 1
            samples = first, middle, last
            fonts = [self._font(sample) for sample in samples]
            text = _joined(letters[first : match.end()])
            is_bold = all(_BOLD_FONT.search(name + text[:3]) for name, _ in fonts)
            is_code = all(is_fixed or _CODE_FONT.search(name) for name, is_fixed in fonts)
            # A bullet, or the number of a footnote, has another size or height.
            size = median(map(self._size, samples))
            base = median(map(self._base, samples))
            # Letters of East Asia may have a fixed pitch in any font.
            is_code = is_code and not re.search(EAST_ASIAN, text)
            words: list[Word] = []
            if not is_code:
                for word in _WORD.finditer(units, first, match.end()):
                    start, end = word.span()
                    begin = self._text_page.get_charbox(start)[0]
                    right = self._text_page.get_charbox(end - 1)[2]
                    extent = begin, right, self._base(start) + size / 4
                    words.append(Word(_joined(letters[start:end]), *extent, size, len(lines)))
            looks = size, is_code, is_bold
            lines.append(Line(text, self._number, left, base, *looks, height, words))
        return lines

    def _font(self, char: int) -> tuple[str, int]:
        """The name of a character's font, and whether that says of itself that it has a fixed pitch."""
        name = ctypes.create_string_buffer(_MAX_FONT_NAME)
        flags = ctypes.c_int()
        self._raw.FPDFText_GetFontInfo(self._text_page, char, name, _MAX_FONT_NAME, flags)
        return name.value.decode("utf-8", "replace").lower(), flags.value & _FIXED_PITCH

    def _ligature(self, match: re.Match[str]) -> str:
        """What a place of a ligature stands for: that, in a font of pictures, which has no name."""
        return match[0] if self._font(match.start())[0] else match[0].translate(_LIGATURES)

    def _size(self, char: int) -> float:
        """The size of a character's font, in half points."""
        matrix = self._raw.FS_MATRIX()
        self._raw.FPDFText_GetMatrix(self._text_page, char, matrix)
        size = self._raw.FPDFText_GetFontSize(self._text_page, char)
        return max(round(size * math.hypot(matrix.c, matrix.d) * 2) / 2, 1.0)

    def _base(self, char: int) -> float:
        """The height of the base line on which a letter stands; boxes of letters differ."""
        base = ctypes.c_double()
        self._raw.FPDFText_GetCharOrigin(self._text_page, char, ctypes.c_double(), base)
        return base.value

    def _step(self, first: int, second: int) -> tuple[float, float]:
        """How far a letter stands to the right of another, and above it, in font sizes."""
        right = self._text_page.get_charbox(first)[2]
        left = self._text_page.get_charbox(second)[0]
        size = self._size(first)
        return (left - right) / size, (self._base(second) - self._base(first)) / size

    def _between(self, line_end: re.Match[str]) -> str:
        """The end of a line; what stands for it, as many characters, where the line goes on behind
        letters that are higher, lower or larger.
        """
        gap, step = self._step(line_end.start() - 1, line_end.end())
        if not -_MAX_GAP < gap < _MAX_STEP or abs(step) > _MAX_STEP:
            return line_end[0]
        return (_JOINT if gap < _MAX_GAP else " ") * len(line_end[0])

    def _move_accent(self, match: re.Match[str], units: str, letters: list[str]) -> str:
        """The units without an accent, which is put behind the letter over or below which it
        stands.
        """
        accent = match.start(1)
        near = range(max(accent - _MAX_DISTANCE, 0), min(accent + _MAX_DISTANCE, len(units)))
        for letter in sorted(near, key=lambda place: abs(place - accent)):
            if not units[letter].isalpha() or letter == accent:
                continue
            gap, step = self._step(letter, accent)
            if max(gap, self._step(accent, letter)[0]) < -_MAX_GAP and abs(step) < _MAX_STEP:
                letters[letter] = letters[letter].replace("ı", "i") + match[1].translate(_COMBINING)
                first, end = match.span()
                # An accent before this one may have been of another letter.
                first = len(units[:first].rstrip(f"{_JOINT} "))
                gap, _ = self._step(max(first - 1, 0), min(end, len(units) - 1))
                blank = _JOINT if abs(gap) < _MAX_GAP else " "
                letters[first:end] = [blank.strip(_JOINT)] * (end - first)
                return units[:first] + blank * (end - first) + units[end:]
        return units

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
            self._raw.FPDFPathSegment_GetPoint(segment, x, y)
            point: _Point = matrix.on_point(x.value, y.value)
            kind = self._raw.FPDFPathSegment_GetType(segment)
            if kind == self._raw.FPDF_SEGMENT_MOVETO:
                start = point
            else:
                yield last, point
            if self._raw.FPDFPathSegment_GetClose(segment):
                yield point, start
            last = point


def _joined(letters: Sequence[str]) -> str:
    """The text of units of UTF-16; ligatures become letters."""
    text = "".join(letters)
    if text.isascii():
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return unicodedata.normalize("NFKC", whole)
