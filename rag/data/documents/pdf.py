"""PDF: running heads left out, headings from the outline or from font sizes, lines joined to
paragraphs.
"""

import itertools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from statistics import mode
from threading import Lock
from typing import Any

from rag.core.errors import MissingDependencyError
from rag.core.optional import DISTRIBUTION, require
from rag.data.documents import grid
from rag.data.documents.blocks import PAGE_BREAK, Content, Piece, Unreadable, clean, stated_title
from rag.data.documents.pdf_page import EAST_ASIAN, Line, PageReader
from rag.data.documents.pdf_tables import find_tables, words_of
from rag.data.documents.scans import recognised_lines
from rag.data.files.fields import listed_names

# Lines end in it for a hyphen.
_HYPHEN = "\x02"
# At the end of a page PDFium sees no next line, and may leave the hyphen as it is.
_HYPHEN_OF_PAGE = re.compile(r"(?<=[^\W\d_])-\Z")
# From the beginning of a word on, so that long ones are read once.
_HYPHENATED = re.compile(
    rf"(?<![\w-])([\w-]*){_HYPHEN} ?({PAGE_BREAK}?)\s*(?!(?:and|und|oder)\b)(?=([\w-]*))"
)
# The end and the beginning of two lines without a blank between them.
_SEAM = re.compile(rf"\S[–—]\w|\S/[^\W\d_]|.?{EAST_ASIAN}{{2}}\Z")
_WORDS = re.compile(r"[\w-]+")
# Two parts around a hyphen that belongs to their word.
_COMPOUND = re.compile(
    r"""-                                  # an option
    |.*[-\d_].*\x02|.*\x02(?:\d|.*-\w)    # with a number, or of three parts
    |(?![A-Z]{3,}\x02[A-Z]+\Z).*(?:[A-Z]\x02|\x02[A-Z])  # with a capital, in text without
    |[a-z]\x02                           # with a letter alone
    |(?:self|well|cross|long|high|low|real|full|fine|two|three|four)\x02  # or with one of these
     (?!(?:e[drs]|e?st?|ing|ings|ly|ness|i[sz].*|ity|ish|teen.*|th|land.*|light.*|way.*)\Z)
    """,
    re.VERBOSE,
)
# Dots that lead to the page number in a table of contents.
_LEADERS = re.compile(r"(?:[.·…_] ?){4,}[\divxlcIVXLC]+\s*\Z|(?:[.·…] ?){8,}\Z")
# And what browsers print beside it.
_PAGE_NUMBER = re.compile(
    r"[-–—\s]*(?:(?:page|seite|página|pagina|p\.|s\.)\s*)?(?:\d{1,3}|[ivxlc]{1,7})"
    r"(?:\s*(?:/|of|von|sur|de|di)\s*\d{1,4})?[-–—\s]*\Z"
    r"|\d{1,2}[./]\d{1,2}[./]\d{2,4}, \d{1,2}:\d\d(?!\d)|(?:https?|file):\S+ \d+/\d+\Z",
    re.IGNORECASE,
)
# Not in a year: a list of what happened is no table of contents.
_ENDS_IN_NUMBER = re.compile(r"\D\s*\b(?:\d{1,3}|1[0-4]\d\d|[ivxlc]+)\s*\Z")
_LAST_NUMBER = re.compile(r"\d+\s*\Z")
# Entries that make a page a table of contents.
_MIN_ENTRIES = 8
# Fonts of symbols have their bullets in a private area of Unicode. LibreOffice leaves no blank behind
# a number of two digits.
_ENTRY = re.compile(
    r"([•▪◦‣●○■□▶►➢➤◆–\-*·\uf000-\uf0ff]|\(?\d{1,3}[.)]|\(?[a-z]\))(?:\s+(?=\S)|(?<=\d\d[.)])(?=[^\W\d_]{2}))"
)
_SENTENCE_ENDS = ".:;!?"
# The share of a page's height, above and below, in which running heads and feet stand; the first or
# last line may stand further inside.
_MARGIN = 0.12
_WIDE_MARGIN = 0.2
_MAX_HEADING_CHARS = 160
_MAX_BOLD_HEADING_CHARS = 80
_MAX_HEADING_LINES = 3
_MAX_LEVELS = 4
_NUMBERING = re.compile(
    r"(?:chapter|appendix|part|section)?\s*[\dA-Z]+(?:\.\d+)*[.:]?\s+", re.IGNORECASE
)
# Headings of papers that are neither larger nor bold.
_SECTION = re.compile(r"(?:[IVX]{1,5}\. [^a-z]+|REFERENCES|ACKNOWLEDGE?MENTS?|APPENDI[^a-z]+)\Z")
_MAX_INDENT = 40
_OutlineEntry = tuple[str, int, int]  # title, level, number of the page

_one_at_a_time = Lock()


def pdf(data: bytes) -> Content:
    """A PDF; its title is that of its metadata, else the largest lines of the first page."""
    pdfium = require("pypdfium2", "docs")
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unreadable("encrypted", "save a copy without a password") from error
        raise
    # Some forms have values without a look.
    document.init_forms()
    n_pages = len(document)
    n_broken = 0
    lines: list[Line] = []
    labels = _labels(document)
    scanned: list[str] = []
    wordless: list[str] = []
    for number in range(n_pages):
        try:
            lines_of_page = _lines_and_tables(PageReader(document, number))
            if not lines_of_page:
                lines_of_page = recognised_lines(document[number], number)
                if lines_of_page:
                    scanned.append(labels[number])
                elif next(document[number].get_objects(), None) is not None:
                    wordless.append(labels[number])
            lines += lines_of_page
        except pdfium.PdfiumError:
            n_broken += 1
    if n_broken == n_pages:
        raise Unreadable("broken file", "get a whole copy of it", "no page of it can be read")
    if not lines:
        remedy = f"pip install '{DISTRIBUTION}[ocr]', or make its text searchable with `ocrmypdf`"
        raise Unreadable("scanned", remedy, f"{n_pages:,} pages without a character")
    notes: list[str] = []
    if wordless:
        counted = f"{len(wordless)} of {n_pages} pages show something without characters"
        notes.append(f"{counted}, such as a scan: {listed_names(wordless)}")
    if n_broken:
        notes.append(f"{n_broken} of {n_pages} pages are damaged")
    lines = _without_boilerplate(lines, labels)
    outline = list(_outline(document))
    if len(outline) < 2 or _mark_outline(lines, outline) < 0.3 * len(outline):
        _mark_by_size(lines)
    title = stated_title(document.get_metadata_value("Title")) or _title_by_size(lines)
    pieces = _without_hyphenation(list(_pieces(lines, labels)))
    return Content(title, pieces, notes, scanned=scanned)


def number_of_page(path: Path, label: str) -> int:
    """Number of the first page with this label, counted from 1; 1 without such a page or a readable
    PDF.
    """
    try:
        with _one_at_a_time, closing(require("pypdfium2", "docs").PdfDocument(path)) as document:
            return _labels(document).index(label) + 1
    # PDFium's errors are runtime errors; a label that no page has is a wrong value.
    except (OSError, RuntimeError, ValueError, MissingDependencyError):
        return 1


def _labels(document: Any) -> list[str]:
    """The label of each page; numbers from 1 where the file gives two pages the same one."""
    numbers = [str(index + 1) for index in range(len(document))]
    labels = [document.get_page_label(index) or number for index, number in enumerate(numbers)]
    return labels if len({*labels}) == len(labels) else numbers


def _outline(document: Any) -> Iterator[_OutlineEntry]:
    for mark in document.get_toc(max_depth=6):
        target = mark.get_dest()
        title = clean(mark.get_title())
        if target is not None and title:
            yield title, mark.level + 1, target.get_index()


def _lines_and_tables(page: PageReader) -> list[Line]:
    """The lines of a page; each of its tables stands in place of its first line."""
    lines = page.lines()
    if _is_contents(lines):
        return lines
    words = list(itertools.chain.from_iterable(line.words for line in lines))
    tables = find_tables(words, *page.rules())
    if not tables:
        return lines
    first_lines = {min(word.line for word in table.words): table.grid for table in tables}
    words_in_tables = words_of(tables)
    merged: list[Line] = []
    for number, line in enumerate(lines):
        if number in first_lines:
            table = first_lines[number]
            text = " ".join(" ".join(grid.texts_of(row)) for row in table)
            merged.append(replace(line, text=text, table=table))
        words = [word for word in line.words if word not in words_in_tables]
        if len(words) == len(line.words):
            merged.append(line)
        elif words:
            text = " ".join(word.text for word in words)
            merged.append(replace(line, text=text, left=words[0].left))
    return merged


def _without_boilerplate(lines: list[Line], labels: Sequence[str]) -> list[Line]:
    """Drop page numbers, running heads, tables of contents, and what repeats at the edge of
    pages.
    """
    pages = {number: list(page) for number, page in itertools.groupby(lines, attrgetter("page"))}
    marks = {number: list(_edge_marks(page, labels[number])) for number, page in pages.items()}
    n_pages_with = Counter(itertools.chain.from_iterable({*found} for found in marks.values()))
    min_pages = 3 if len(pages) > 4 else 2
    remaining: list[Line] = []
    for number, page in pages.items():
        if number < 5 + len(labels) // 8 and _is_contents(page):
            continue
        for line, mark in zip(page, marks[number], strict=True):
            is_repeated = mark and n_pages_with[mark] >= min_pages
            is_number = mark and _PAGE_NUMBER.match(line.text)
            if not (is_repeated or is_number or _LEADERS.search(line.text)):
                remaining.append(line)
    return remaining or lines


def _is_contents(page: Sequence[Line]) -> bool:
    """Whether it is a table of contents: most lines end in a number, and these hardly ever fall."""
    entries = [line.text for line in page if _ENDS_IN_NUMBER.search(line.text)]
    if len(entries) < _MIN_ENTRIES or len(entries) <= 0.6 * len(page):
        return False
    numbers = [int(match[0]) for match in map(_LAST_NUMBER.search, entries) if match]
    n_falls = sum(after < before for before, after in itertools.pairwise(numbers))
    return n_falls <= 0.1 * len(numbers)


def _edge_marks(page: Sequence[Line], label: str) -> Iterator[str]:
    """For each line at the edge of a page, the part of it that recurs on other pages; "" for tables
    and lines elsewhere.
    """
    bases = [line.base for line in page]
    for line in page:
        height = line.base / line.height
        margin = _WIDE_MARGIN if line.base in (min(bases), max(bases)) else _MARGIN
        if line.table or margin < height < 1 - margin:
            yield ""
            continue
        words = line.text.split()
        # What stands beside the number of the page may differ in each chapter.
        text = label if label in (words[0], words[-1]) else clean(line.text).lower()
        yield f"{round(line.base / 8)} " + re.sub(r"\d+|\b[ivxlc]+\b", "#", text)


def _title_by_size(lines: Sequence[Line]) -> str:
    """The largest lines of the first page, if they stand together and are few."""
    first_page = [line for line in lines if line.page == lines[0].page]
    size = max(line.size for line in first_page)
    largest = [number for number, line in enumerate(first_page) if line.size == size]
    end = largest[-1] + 1
    are_together = end - largest[0] == len(largest) <= _MAX_HEADING_LINES
    if not are_together or size <= mode(line.size for line in lines):
        return ""
    text = " ".join(line.text for line in first_page[largest[0] : end])
    return clean(text.replace(f"{_HYPHEN} ", ""))


def _pieces(lines: Sequence[Line], labels: Sequence[str]) -> Iterator[Piece]:
    """Join lines to headings, code, entries of lists and paragraphs."""
    steps: list[float] = []
    for upper, lower in itertools.pairwise(lines):
        step = (upper.base - lower.base) / upper.size
        if upper.page == lower.page and upper.size == lower.size and 0.8 < step < 3:
            steps.append(round(step, 1))
    # The usual step from a line to the next, in font sizes.
    pitch = mode(steps or [1.2])
    block: list[Line] = []
    for line in lines:
        if block and not _continues(block, line, pitch):
            yield from _block_pieces(block, labels)
            block = []
        block.append(line)
    yield from _block_pieces(block, labels)


def _continues(block: Sequence[Line], line: Line, pitch: float) -> bool:
    """Whether a block of lines goes on with a line."""
    last = block[-1]
    # A table that goes on.
    if line.table and last.table:
        return line.page == last.page + 1 and len(line.table[0]) == len(last.table[0])
    # A word that goes on.
    if last.text[-1:] == _HYPHEN and not line.table:
        return True
    if line.level != last.level or line.is_code != last.is_code or line.table or last.table:
        return False
    is_entry = _ENTRY.match(line.text)
    has_ended = last.text[-1:] in _SENTENCE_ENDS
    if line.page != last.page:
        # A sentence that goes on.
        is_other = has_ended or line.size != last.size or line.level or line.is_code or is_entry
        return line.text[:1].islower() and not is_other
    step = (last.base - line.base) / max(last.size, 1)
    if line.level:
        is_near = 0 < step < 1.35 * max(pitch, 1.4)
        return is_near and abs(line.size - last.size) < 1 and len(block) < _MAX_HEADING_LINES
    if line.is_code:
        return -0.5 < step < 2.2 * pitch
    if abs(line.size - last.size) > 1.5 or (is_entry and not -0.3 < step < 0.3):
        return False
    is_indented = line.left - last.left > 0.8 * line.size
    is_in_entry = _ENTRY.match(block[0].text)
    begins_paragraph = has_ended and is_indented and not is_in_entry
    # A step upwards leads to the next column.
    return step < 1.3 * pitch + 0.1 and not begins_paragraph


def _block_pieces(block: Sequence[Line], labels: Sequence[str]) -> Iterator[Piece]:
    first = block[0]
    if first.table:
        yield from _table_pieces(block, labels)
    elif first.is_code and not first.level:
        yield Piece("code", _code(block), pages=(labels[first.page],))
    else:
        yield _text_piece(block, labels)


def _table_pieces(block: Sequence[Line], labels: Sequence[str]) -> Iterator[Piece]:
    """The lines of a table, which may go on over several pages and repeat its headings there."""
    table: list[grid.Row] = []
    # Number of pieces of the table up to the end of each page.
    n_pieces: list[int] = []
    for line in block:
        n_repeated = 0
        for row, row_of_page in zip(table, line.table, strict=False):
            if grid.texts_of(row) != grid.texts_of(row_of_page):
                break
            n_repeated += 1
        table += line.table[n_repeated:]
        n_pieces.append(len(list(grid.table(table))))
    for number, piece in enumerate(grid.table(table)):
        line = block[min(bisect_right(n_pieces, number), len(block) - 1)]
        yield replace(piece, pages=(labels[line.page],))


def _code(block: Sequence[Line]) -> str:
    """Lines of code, indented by their places on the page."""
    left = min(line.left for line in block)
    lines: list[str] = []
    for line in block:
        indent = round((line.left - left) / (0.6 * line.size))
        lines.append(" " * min(_MAX_INDENT, indent) + line.text.strip())
    return "\n".join(lines)


def _text_piece(block: Sequence[Line], labels: Sequence[str]) -> Piece:
    text = ""
    pages = [block[0].page]
    for line in block:
        separator = " "
        if line.page != pages[-1]:
            pages.append(line.page)
            text = _HYPHEN_OF_PAGE.sub(_HYPHEN, text)
            separator = f" {PAGE_BREAK}"
        elif _SEAM.match(text[-2:] + line.text[:1]):
            separator = ""
        text += separator + line.text.replace(PAGE_BREAK, " ").strip()
    text = text.lstrip()
    on_pages = tuple(labels[page] for page in pages)
    if block[0].level:
        return Piece("heading", text, block[0].level, on_pages)
    entry = _ENTRY.match(text)
    if entry:
        mark = entry[1] if entry[1][-1] in ".)" else "•"
        return Piece("item", f"{mark} {text[entry.end() :]}", pages=on_pages)
    return Piece("paragraph", text, pages=on_pages)


def _without_hyphenation(pieces: Sequence[Piece]) -> list[Piece]:
    """Join the words that hyphens part at the ends of lines; hyphens of words stay, as in ISO-8601.

    How the document spells a word elsewhere decides, else what stands around the hyphen.
    """
    words = set[str]()
    for piece in pieces:
        words.update(_WORDS.findall(piece.text.lower()))

    def join(match: re.Match[str]) -> str:
        before, page_break, after = match.groups()
        is_kept = f"{before}-{after}".lower() in words
        if is_kept == (f"{before}{after}".lower() in words):
            is_kept = _COMPOUND.match(f"{before}\x02{after}") is not None
        hyphen = "-" if is_kept else ""
        return f"{before}{hyphen}{page_break}"

    return [replace(piece, text=_HYPHENATED.sub(join, piece.text)) for piece in pieces]


def _mark_outline(lines: Sequence[Line], outline: Sequence[_OutlineEntry]) -> int:
    """Set `level` of the first lines on an entry's page that read like it.

    Returns:
        How many entries did.
    """
    n_marked = 0
    start = 0
    for title, level, page in outline:
        letters = _letters(title)
        begin = bisect_right(lines, page - 1, key=attrgetter("page"))
        end = bisect_right(lines, page, key=attrgetter("page"))
        # A heading is looked for behind the one before it, unless that is on a later page.
        if begin <= start < end:
            begin = start
        for heading in range(begin, end) if letters else ():
            n_lines = _count_heading_lines(lines, heading, letters)
            if n_lines:
                start = heading + n_lines
                for line in lines[heading:start]:
                    line.level = level
                n_marked += 1
                break
    return n_marked


def _count_heading_lines(lines: Sequence[Line], start: int, title: str) -> int:
    """Number of lines from `start` on that are the heading, 0 if none; `title` may lack their
    numbering.
    """
    numbering = _NUMBERING.match(lines[start].text)
    number = _letters(numbering[0]) if numbering else ""
    letters = ""
    for n_lines, line in enumerate(lines[start : start + _MAX_HEADING_LINES], start=1):
        letters += _letters(line.text)
        if title in (letters, letters.removeprefix(number)):
            return n_lines
    return 0


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _mark_by_size(lines: Sequence[Line]) -> None:
    """Set `level`: sizes above the body's, the largest first; bold lines alone are the level
    below.
    """
    n_chars_of_size = Counter[float]()
    n_bold = 0
    for line in lines:
        line.level = 0
        n_chars_of_size[line.size] += len(line.text)
        n_bold += line.is_bold * len(line.text)
    body = n_chars_of_size.most_common(1)[0][0]
    larger = [line for line in lines if line.size >= 1.12 * body and _may_be_heading(line)]
    sizes = sorted({line.size for line in larger}, reverse=True)
    for line in larger:
        line.level = min(sizes.index(line.size) + 1, _MAX_LEVELS)
    if n_bold >= 0.2 * n_chars_of_size.total():
        return
    level = min(len(sizes), _MAX_LEVELS) + 1
    for before, line in zip([None, *lines], lines, strict=False):
        is_section = _SECTION.match(line.text)
        if line.level or not (is_section or (line.is_bold and line.size >= body)):
            continue
        begins = (
            is_section
            or before is None
            or before.page != line.page
            or before.text.rstrip()[-1:] in ".:!?"
        )
        if begins and _may_be_heading(line, _MAX_BOLD_HEADING_CHARS):
            line.level = level + (not is_section)


def _may_be_heading(line: Line, max_chars: int = _MAX_HEADING_CHARS) -> bool:
    text = line.text.strip()
    n_letters = sum(map(str.isalpha, text))
    is_short = n_letters >= 2 and len(text) <= max_chars and n_letters > len(text) / 3
    return is_short and not (line.is_code or line.table) and text[-1] not in ".,;:"
