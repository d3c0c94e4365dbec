"""PDF by PDFium: lines with their places and font sizes, headings from the outline or from the
sizes.

Note:
    PDFium is not thread-safe and may then give empty text without an error: one document at a time.
"""

import ctypes
import itertools
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any

from rag.core.errors import MissingDependencyError
from rag.core.optional import require
from rag.data.documents import grid
from rag.data.documents.blocks import PAGE_BREAK, Content, Piece, Unreadable, clean, stated_title
from rag.data.documents.pdf_tables import Rule, Word, find_tables, words_of

_HYPHENS = "\x02\ufffe"  # what PDFium writes for a hyphen at the end of a line
_LEADERS = re.compile(r"(?:[.·…_] ?){4,}[\divxlcIVXLC]*\s*\Z")  # of a table of contents
_PAGE_NUMBER = re.compile(
    r"[-–—\s]*(?:page\s+)?(?:\d{1,4}|[ivxlc]{1,7})(?:\s*(?:/|of)\s*\d{1,4})?[-–—\s]*\Z", re.I
)
_ENDS_IN_NUMBER = re.compile(r"\D\s*\b(?:\d{1,4}|[ivxlc]+)\s*\Z")
_MIN_CONTENTS = 8  # lines of a page that is a table of contents
_ENTRY = re.compile(r"([•▪◦‣●○■□–\-*·]|\(?\d{1,3}[.)]|\(?[a-z]\))\s+(?=\S)")
_WORD = re.compile(r"[^\s\x02\ufffe]+")
_LINE = re.compile(r"[^\s\ufffe](?:[^\r\n]*[^\s])?")
_CODE_FONTS, _BOLD_FONTS = ("mono", "courier", "cmtt"), ("bold", "black", "heavy", "cmbx", "demi")
_FIXED_PITCH = 1  # a bit of a font's flags
_SENTENCE_ENDS = ".:;!?"
_MARGIN = 0.12  # of a page's height, where running heads and feet stand
_TITLE_JUNK = re.compile(
    r"\.(docx?|rtf|tex|dvi|indd|qxd|ps|pdf|fm|html?)$|^(untitled|microsoft word|slide 1)", re.I
)
_one_at_a_time = Lock()
_MAX_HEADING_CHARS = 160
_MAX_POINTS = 2000  # of the paths of a page that may be ruled lines; drawings have more
_MAX_HEADING_LINES = 3
_MAX_LEVELS = 4
_NUMBERING = re.compile(
    r"(?:chapter|appendix|part|section)?\s*[\dA-Z]+(?:\.\d+)*\.?\s+", re.IGNORECASE
)


@dataclass(slots=True)
class _Line:
    """A line of a page: its places from the page's left lower corner, and its font size, in
    points.
    """

    text: str
    page: int
    left: float
    top: float
    bottom: float
    size: float
    is_code: bool
    is_bold: bool
    height: float  # of the page
    level: int = 0  # of a heading; 0 for other lines
    table: grid.Grid = ()  # a table is one line


def pdf(data: bytes) -> Content:
    """Title, pieces and notes of a PDF."""
    library = require("pypdfium2", "docs")
    try:
        document = library.PdfDocument(data)
        count = len(document)
    except library.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unreadable("encrypted", "save a copy without a password") from error
        raise
    lines: list[_Line] = []
    n_empty = n_broken = 0
    for number in range(count):
        try:
            of_page = _lines_and_tables(document, number, library.raw)
        except library.PdfiumError:
            n_broken += 1
            continue
        n_empty += not of_page
        lines += of_page
    if n_broken == count:
        raise Unreadable("broken file", "get a whole copy of it", "no page of it can be read")
    if not lines:
        remedy = "make its text searchable, for example with `ocrmypdf`"
        raise Unreadable("scanned", remedy, f"{count:,} pages without a character")
    outline = [
        (title, mark.level + 1, target.get_index())
        for mark in document.get_toc(max_depth=6)
        if (target := mark.get_dest()) is not None and (title := clean(mark.get_title()))
    ]
    labels = _labels(document)
    title = stated_title(document.get_metadata_value("Title"))
    lines = _without_boilerplate(lines, labels)
    if len(outline) < 2 or _mark_outline(lines, outline) < 0.3 * len(outline):
        _mark_by_size(lines)
    notes = []
    if n_empty and n_empty > count // 10:
        notes.append(f"{n_empty} of {count} pages have no characters: empty or scanned")
    if n_broken:
        notes.append(f"{n_broken} of {count} pages are damaged")
    if not title or _TITLE_JUNK.search(title):
        title = _title_by_size(lines)
    return Content(title, list(_pieces(lines, labels)), notes)


def number_of_page(path: Path, label: str) -> int:
    """Number of the first page with this label, counted from 1; 1 without such a page or a readable
    PDF.
    """
    try:
        with _one_at_a_time, closing(require("pypdfium2", "docs").PdfDocument(path)) as document:
            labels = _labels(document)
    except (OSError, RuntimeError, MissingDependencyError):  # PDFium's errors are the second
        return 1
    return labels.index(label) + 1 if label in labels else 1


def _labels(document: Any) -> list[str]:
    """The label of each page; numbers from 1 where the file gives two pages the same one."""
    labels = [document.get_page_label(number) or str(number + 1) for number in range(len(document))]
    return (
        labels
        if len({*labels}) == len(labels)
        else [str(number + 1) for number in range(len(labels))]
    )


def _lines_and_tables(document: Any, number: int, raw: Any) -> list[_Line]:
    """The lines of a page; each of its tables stands in place of its first line."""
    page = document[number]
    lines = list[_Line]()
    words = list[list[Word]]()
    for line, of_line in _lines(page, number, raw):
        lines.append(line)
        words.append(of_line)
    if _is_contents(lines):
        return lines
    tables = find_tables(list(itertools.chain(*words)), *_rules(page, raw))
    if not tables:
        return lines
    begins = {min(word.line for word in table.words): table for table in tables}
    taken = words_of(tables)
    merged = list[_Line]()
    for place, (line, of_line) in enumerate(zip(lines, words, strict=True)):
        if place in begins:
            table = begins[place].grid
            text = " ".join(map(" ".join, map(grid.texts_of, table)))
            merged.append(replace(line, text=text, table=table))
        rest = [word for word in of_line if word not in taken]
        if len(rest) == len(of_line):
            merged.append(line)
        elif rest:
            text = " ".join(word.text for word in rest)
            merged.append(replace(line, text=text, left=rest[0].left))
    return merged


def _rules(page: Any, raw: Any) -> tuple[list[Rule], list[Rule]]:
    """The horizontal and the vertical ruled lines of a page."""
    horizontal = list[Rule]()
    vertical = list[Rule]()
    for shape in page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH]):
        n_points = raw.FPDFPath_CountSegments(shape)
        if n_points > _MAX_POINTS or len(horizontal) + len(vertical) > _MAX_POINTS:
            continue
        matrix = shape.get_matrix()
        points = [_point(shape, place, matrix, raw) for place in range(n_points)]
        first = points[0] if points else None
        for before, point in itertools.pairwise(points):
            is_start = point[2] == raw.FPDF_SEGMENT_MOVETO
            first = point if is_start else first
            ends = [] if is_start else [(before, point)]
            if point[3] and first is not None:
                ends.append((point, first))
            for (x, y, *_), (to_x, to_y, *_) in ends:
                if abs(y - to_y) < 1 <= abs(x - to_x):
                    horizontal.append(Rule(y, min(x, to_x), max(x, to_x)))
                elif abs(x - to_x) < 1 <= abs(y - to_y):
                    vertical.append(Rule(x, min(y, to_y), max(y, to_y)))
    return horizontal, vertical


def _point(shape: Any, place: int, matrix: Any, raw: Any) -> tuple[float, float, int, bool]:
    """A point of a path on the page, the kind of its segment, and whether that closes the path."""
    segment = raw.FPDFPath_GetPathSegment(shape, place)
    x = ctypes.c_float()
    y = ctypes.c_float()
    raw.FPDFPathSegment_GetPoint(segment, ctypes.byref(x), ctypes.byref(y))
    on_page = matrix.on_point(x.value, y.value)
    kind = raw.FPDFPathSegment_GetType(segment)
    return *on_page, kind, bool(raw.FPDFPathSegment_GetClose(segment))


def _lines(page: Any, number: int, raw: Any) -> Iterator[tuple[_Line, list[Word]]]:
    """Cut a page's characters at line ends, and lines that are no code into words; place and size
    are those of a line's first visible character.
    """
    text_page, height = page.get_textpage(), page.get_height()
    n_chars = max(text_page.count_chars(), 0)
    buffer = (ctypes.c_ushort * (n_chars + 1))()
    raw.FPDFText_GetText(text_page.raw, 0, n_chars, buffer)
    page_text = "".join(
        map(chr, buffer[:n_chars])
    )  # one character for each of PDFium's, surrogates too
    flags = ctypes.c_int()
    name = ctypes.create_string_buffer(128)
    for place, match in enumerate(_LINE.finditer(page_text)):
        first, last = match.start(), match.end() - 1
        left, bottom, _, top = text_page.get_charbox(first)
        is_code = is_bold = True
        for sample in {first, (first + last) // 2, last}:
            raw.FPDFText_GetFontInfo(text_page, sample, name, len(name), ctypes.byref(flags))
            font = name.value.decode("utf-8", "replace").lower()
            is_code &= bool(flags.value & _FIXED_PITCH) or any(mark in font for mark in _CODE_FONTS)
            is_bold &= any(mark in font for mark in _BOLD_FONTS)
        size = round(raw.FPDFText_GetFontSize(text_page, first) * 2) / 2
        if size <= 2:  # the size is in the text's matrix, not in the font
            size = max(round((top - bottom) * 1.4 * 2) / 2, 1)
        text = _decoded(match[0])
        text = text if is_code else unicodedata.normalize("NFKC", text)  # ligatures to letters
        words = [] if is_code else _words(match, place, size, text_page, raw)
        yield _Line(text, number, left, top, bottom, size, is_code, is_bold, height), words


def _decoded(units: str) -> str:
    """A text whose characters are the units of UTF-16."""
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _words(line: re.Match[str], number: int, size: float, text_page: Any, raw: Any) -> list[Word]:
    words = list[Word]()
    base = ctypes.c_double()  # where the letters stand; their boxes differ
    left = ctypes.c_double()
    right = ctypes.c_double()
    ignored = ctypes.c_double()
    for match in _WORD.finditer(line[0]):
        first = line.start() + match.start()
        last = line.start() + match.end() - 1
        raw.FPDFText_GetCharOrigin(text_page, first, ignored, base)
        raw.FPDFText_GetCharBox(text_page, first, left, ignored, ignored, ignored)
        begin = left.value
        raw.FPDFText_GetCharBox(text_page, last, ignored, right, ignored, ignored)
        text = match[0]
        if not text.isascii():
            text = unicodedata.normalize("NFKC", _decoded(text))
        words.append(Word(text, begin, right.value, base.value + size / 4, size, number))
    return words


def _without_boilerplate(lines: list[_Line], labels: Sequence[str]) -> list[_Line]:
    """Drop page numbers, running heads, tables of contents, and what repeats at the edge of
    pages.
    """
    pages = {number: list(page) for number, page in itertools.groupby(lines, attrgetter("page"))}
    repeated = Counter(
        mark for page in pages.values() for mark in set(map(_edge_mark, page)) if mark
    )
    enough = 3 if len(pages) > 4 else 2

    def is_furniture(line: _Line) -> bool:
        if line.table or not (mark := _edge_mark(line)):
            return False
        words = line.text.split()
        is_number = (
            labels[line.page] in (words[0], words[-1]) or _PAGE_NUMBER.match(line.text) is not None
        )
        return is_number or repeated[mark] >= enough

    texts = [
        page
        for number, page in pages.items()
        if number >= 5 + len(labels) // 8 or not _is_contents(page)
    ]
    remaining = (line for page in texts for line in page if not _LEADERS.search(line.text))
    return [line for line in remaining if not is_furniture(line)] or lines


def _is_contents(page: Sequence[_Line]) -> bool:
    """Whether it is a table of contents: most lines end in a number, and these hardly ever fall."""
    entries = [line.text for line in page if _ENDS_IN_NUMBER.search(line.text)]
    numbers = [int(match[0]) for text in entries if (match := re.search(r"\d+\s*\Z", text))]
    falls = sum(after < before for before, after in itertools.pairwise(numbers))
    return (
        len(entries) >= _MIN_CONTENTS
        and len(entries) > 0.6 * len(page)
        and falls <= 0.1 * len(numbers)
    )


def _edge_mark(line: _Line) -> str:
    """The part of a line at the edge of a page that recurs on other pages; "" for lines
    elsewhere.
    """
    middle = (line.top + line.bottom) / 2 / line.height
    if _MARGIN < middle < 1 - _MARGIN:
        return ""
    return f"{round(line.top / 8)} " + re.sub(r"\d+|\b[ivxlc]+\b", "#", clean(line.text).lower())


def _title_by_size(lines: Sequence[_Line]) -> str:
    first = [line for line in lines if line.page == lines[0].page]
    size = max(line.size for line in first)
    grouped = itertools.groupby(first, lambda line: line.size == size)
    run, *others = [list(run) for is_large, run in grouped if is_large]
    is_title = (
        not others and len(run) <= 3 and size > Counter(x.size for x in lines).most_common(1)[0][0]
    )
    return clean(" ".join(line.text for line in run)) if is_title else ""


def _pieces(lines: Sequence[_Line], labels: Sequence[str]) -> Iterator[Piece]:
    """Join lines to headings, code, entries of lists and paragraphs."""
    steps = Counter[float]()
    for first, second in itertools.pairwise(lines):
        step = (first.bottom - second.bottom) / first.size
        if first.page == second.page and first.size == second.size and 0.8 < step < 3:
            steps[round(step, 1)] += 1
    pitch = steps.most_common(1)[0][0] if steps else 1.2  # from a line to the next, in font sizes
    block: list[_Line] = []
    for line in lines:
        if block and not _continues(block[-1], line, block, pitch):
            yield from _block_pieces(block, labels)
            block = []
        block.append(line)
    yield from _block_pieces(block, labels)


def _block_pieces(block: Sequence[_Line], labels: Sequence[str]) -> Iterator[Piece]:
    if not block[0].table:
        yield _piece(block, labels)
        return
    table = list[grid.Row]()
    n_pieces = list[int]()  # up to the end of each page
    for line in block:
        first = 0
        for repeated, row in zip(table, line.table):
            if grid.texts_of(repeated) != grid.texts_of(row):
                break
            first += 1
        table += line.table[first:]
        n_pieces.append(len(list(grid.table(table))))
    for number, piece in enumerate(grid.table(table)):
        line = block[min(bisect_right(n_pieces, number), len(block) - 1)]
        yield replace(piece, pages=(labels[line.page],))


def _continues(last: _Line, line: _Line, block: Sequence[_Line], pitch: float) -> bool:
    if line.table and last.table:  # a table that goes on
        return line.page == last.page + 1 and len(line.table[0]) == len(last.table[0])
    is_alike = line.level == last.level and line.is_code == last.is_code
    if not is_alike or line.table or last.table:
        return False
    if line.page != last.page:  # a sentence that goes on
        goes_on = (
            line.text[:1].islower()
            and last.text[-1:] not in _SENTENCE_ENDS
            and line.size == last.size
        )
        return goes_on and not (line.level or line.is_code or _ENTRY.match(line.text))
    step = (last.bottom - line.bottom) / max(last.size, 1)
    if line.level:
        return (
            abs(line.size - last.size) < 1 and 0 < step < 1.35 * max(pitch, 1.4) and len(block) < 3
        )
    if line.is_code:
        return -0.5 < step < 2.2 * pitch
    if abs(line.size - last.size) > 1.5 or (_ENTRY.match(line.text) and not -0.3 < step < 0.3):
        return False
    indented = (
        line.left - last.left > 0.8 * line.size and line.left - block[0].left > 0.8 * line.size
    )
    is_entry = _ENTRY.match(block[0].text) is not None
    ended = last.text[-1:] in _SENTENCE_ENDS and indented and not is_entry
    return step < 1.3 * pitch + 0.1 and not ended  # upwards: the next column


def _piece(block: Sequence[_Line], labels: Sequence[str]) -> Piece:
    if block[0].is_code and not block[0].level:
        left = min(line.left for line in block)  # places on the page show the indentation
        indents = (round((line.left - left) / max(0.6 * line.size, 1)) for line in block)
        texts = (line.text.strip() for line in block)
        code = "\n".join(" " * min(40, n) + it for n, it in zip(indents, texts))
        return Piece("code", code, pages=(labels[block[0].page],))
    text = ""
    pages = [block[0].page]
    for line in block:
        part = line.text.replace(PAGE_BREAK, " ").strip()
        if line.page != pages[-1]:
            pages.append(line.page)
            part = PAGE_BREAK + part
            if re.search(
                r"[^\W\d_]-\Z", text
            ):  # PDFium marks the hyphens that it sees a next line of
                text = text[:-1] + _HYPHENS[0]
        if text[-1:] in _HYPHENS and text:
            text = text[:-1] + part
        else:
            text = f"{text} {part}" if text else part
    text = re.sub(f"[{_HYPHENS}]\\s*", "", text)
    on_pages = tuple(labels[number] for number in pages)
    if block[0].level:
        return Piece("heading", text, block[0].level, on_pages)
    if match := _ENTRY.match(text):
        mark = match[1] if match[1][-1] in ".)" else "•"
        return Piece("item", f"{mark} {text[match.end() :]}", pages=on_pages)
    return Piece("paragraph", text, pages=on_pages)


def _mark_outline(lines: Sequence[_Line], outline: Sequence[tuple[str, int, int]]) -> int:
    """Set `level` of the first lines on an entry's page that read like it; returns how many entries
    did.
    """
    first: dict[int, int] = {}
    for place, line in enumerate(lines):
        first.setdefault(line.page, place)
    n_marked, at = 0, 0
    for title, level, page in outline:
        letters, start = _letters(title), first.get(page)
        if not letters or start is None:
            continue
        at = max(at, start) if lines[min(at, len(lines) - 1)].page <= page else start
        for place in range(at, bisect_right(lines, page, key=attrgetter("page"))):
            if n_lines := _count_heading_lines(lines, place, letters):
                for line in lines[place : place + n_lines]:
                    line.level = level
                n_marked, at = n_marked + 1, place + n_lines
                break
    return n_marked


def _count_heading_lines(lines: Sequence[_Line], place: int, title: str) -> int:
    """Number of lines from `place` on that are the heading, 0 if none; `title` may lack their
    numbering.
    """
    letters = ""
    for n_lines, line in enumerate(lines[place : place + _MAX_HEADING_LINES], start=1):
        letters += _letters(line.text)
        number = _letters(match[0]) if (match := _NUMBERING.match(lines[place].text)) else ""
        if title in (letters, letters.removeprefix(number)):
            return n_lines
        if not title.startswith((letters, letters.removeprefix(number) or letters)):
            break
    return 0


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _mark_by_size(lines: Sequence[_Line]) -> None:
    """Set `level`: sizes above the body's, the largest first; bold lines alone are the level
    below.
    """
    sizes: Counter[float] = Counter()
    for line in lines:
        line.level = 0
        sizes[line.size] += len(line.text)
    body = sizes.most_common(1)[0][0]
    candidates = [line for line in lines if line.size >= 1.12 * body and _may_be_heading(line)]
    larger = sorted({line.size for line in candidates}, reverse=True)
    n_bold = sum(len(line.text) for line in lines if line.is_bold)
    for line in candidates:
        line.level = min(larger.index(line.size) + 1, _MAX_LEVELS)
    if n_bold < 0.2 * sum(sizes.values()):
        below = min(len(larger), _MAX_LEVELS) + 1
        for before, line in zip([None, *lines], lines):
            starts = (
                before is None
                or before.page != line.page
                or before.text.rstrip()[-1:] in (*".:!?", "")
            )
            is_marked = line.is_bold and not line.level and line.size >= body
            if is_marked and starts and _may_be_heading(line, most=80):
                line.level = below


def _may_be_heading(line: _Line, most: int = _MAX_HEADING_CHARS) -> bool:
    text = line.text.strip()
    letters = sum(character.isalpha() for character in text)
    is_short = letters >= 2 and len(text) <= most and letters > len(text) / 3
    return is_short and not (line.is_code or line.table) and text[-1] not in ".,;:"
