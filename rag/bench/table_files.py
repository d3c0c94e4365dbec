"""Files with tables whose cells are known: HTML, Word, Excel, CSV, Markdown and PDF."""

import csv
import html
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, takewhile
from operator import sub
from typing import Any

from rag.core.optional import require

_NUMBER = re.compile(r"(-?[\d,]+(?:\.\d+)?) ?(%|€)?")
_LINE_HEIGHT = 12.0
_FONT_SIZE = 9.0
_PADDING = 4.0
_GAP = 10.0  # between the columns of a table without rules
_PAGE = (595.0, 842.0)  # width and height of A4, in points


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A table as people mean it.

    Attributes:
        headings: for each column its names from the outermost level on; "" in the corner. Equal
            outer names beside each other are one merged cell, and a shorter name is as high as all
            levels.
        n_labels: number of first columns that name the row; equal labels below each other in all but
            the last of them are one merged cell.
        rows: the texts of all cells.
    """

    title: str
    headings: Sequence[tuple[str, ...]]
    n_labels: int
    rows: Sequence[Sequence[str]]

    @property
    def depth(self) -> int:
        """Number of levels of the headings."""
        return max(map(len, self.headings))


@dataclass(frozen=True, slots=True)
class _Spot:
    """A cell: the place of its first row and column, how many it covers, its text."""

    row: int
    column: int
    n_rows: int
    n_columns: int
    text: str


def spots(table: MadeTable) -> list[_Spot]:
    """The cells of a table with its spans, by rows."""
    found = list[_Spot]()
    depth = table.depth
    for column, names in enumerate(table.headings):
        for level, name in enumerate(names[:-1]):
            upper = names[: level + 1]
            is_new = column == 0 or table.headings[column - 1][: level + 1] != upper
            if is_new:
                following = table.headings[column:]
                run = list(takewhile(partial(_begins_with, upper), following))
                found.append(_Spot(level, column, 1, len(run), name))
        level = len(names) - 1
        found.append(_Spot(level, column, depth - level, 1, names[-1]))
    for column in range(len(table.headings)):
        is_merged = column < table.n_labels - 1
        row = depth
        for text, group in groupby(cells[column] for cells in table.rows):
            n_equal = len(list(group))
            height = n_equal if is_merged else 1
            for first in range(row, row + n_equal, height):
                found.append(_Spot(first, column, height, 1, text))
            row += n_equal
    return sorted(found, key=lambda spot: (spot.row, spot.column))


def _begins_with(upper: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return names[: len(upper)] == upper


def html_table(table: MadeTable) -> str:
    """A table of HTML with its spans."""
    lines = ""
    for row, group in groupby(spots(table), key=lambda spot: spot.row):
        cells = ""
        for spot in group:
            is_heading = row < table.depth or spot.column < table.n_labels
            tag = "th" if spot.text and is_heading else "td"
            spans = f' rowspan="{spot.n_rows}"' * (spot.n_rows > 1)
            spans += f' colspan="{spot.n_columns}"' * (spot.n_columns > 1)
            cells += f"<{tag}{spans}>{html.escape(spot.text)}</{tag}>"
        lines += f"<tr>{cells}</tr>"
    return f"<table>{lines}</table>"


def html_page(title: str, prose: str, tables: Sequence[MadeTable]) -> bytes:
    """A page with a section for each table."""
    body = f"<h1>{html.escape(title)}</h1><p>{html.escape(prose)}</p>"
    for table in tables:
        body += f"<h2>{html.escape(table.title)}</h2>{html_table(table)}"
    return f"<!doctype html><html><body>{body}</body></html>".encode()


def markdown(title: str, prose: str, tables: Sequence[MadeTable]) -> bytes:
    """Tables with spans are HTML, as people write them there."""
    parts = [f"# {title}", prose]
    for table in tables:
        parts.append(f"## {table.title}")
        if table.depth > 1 or table.n_labels > 1:
            parts.append(html_table(table))
            continue
        lines = []
        for row in ([name for (name,) in table.headings], *table.rows):
            cells = [text.replace("|", "\\|") for text in row]
            lines.append(f"| {' | '.join(cells)} |")
        lines.insert(1, "|---" * len(table.headings) + "|")
        parts.append("\n".join(lines))
    return "\n\n".join(parts).encode()


def word(title: str, prose: str, tables: Sequence[MadeTable]) -> bytes:
    """A DOCX file with merged cells."""
    document = require("docx", "docs").Document()
    document.add_heading(title, 1)
    document.add_paragraph(prose)
    for table in tables:
        document.add_heading(table.title, 2)
        made = document.add_table(table.depth + len(table.rows), len(table.headings))
        for spot in spots(table):
            first = made.cell(spot.row, spot.column)
            last = made.cell(spot.row + spot.n_rows - 1, spot.column + spot.n_columns - 1)
            first.merge(last).text = spot.text
    return _saved(document)


def workbook(title: str, prose: str, tables: Sequence[MadeTable]) -> bytes:
    """Numbers are numbers with the format that shows them as they are."""
    book = require("openpyxl", "docs").Workbook()
    book.remove(book.active)
    for table in tables:
        sheet = book.create_sheet(re.sub(r"[^\w ]", "", table.title)[:31])
        sheet.append([table.title])
        for spot in spots(table):
            cell = sheet.cell(spot.row + 2, spot.column + 1)
            cell.value, cell.number_format = _value(spot.text)
            if spot.n_rows > 1 or spot.n_columns > 1:
                last_row = cell.row + spot.n_rows - 1
                last_column = cell.column + spot.n_columns - 1
                sheet.merge_cells(None, cell.row, cell.column, last_row, last_column)
    return _saved(book)


def _value(text: str) -> tuple[Any, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text, "General"
    decimals = len(match[1].partition(".")[2])
    number_format = "#,##0" if "," in match[1] or match[2] == "€" else "0"
    number_format += "." * bool(decimals) + "0" * decimals
    value = float(match[1].replace(",", ""))
    if match[2] == "%":
        return value / 100, f"{number_format} %"
    return value, number_format + (' "€"' if match[2] else "")


def csv_file(title: str, prose: str, tables: Sequence[MadeTable]) -> bytes:
    """The first table; a merged heading stands above the first of its columns."""
    table = tables[0]
    rows = [[""] * len(table.headings) for _ in range(table.depth)]
    for spot in spots(table):
        if spot.row < table.depth:  # a heading of one level beside others stands in the lowest
            row = spot.row if spot.n_columns > 1 else table.depth - 1
            rows[row][spot.column] = spot.text
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=";").writerows([*rows, *table.rows])
    return buffer.getvalue().encode()


def pdf_file(title: str, prose: str, tables: Sequence[MadeTable]) -> bytes:
    """Ruled where the first table has an even number of columns."""
    page = PdfPage()
    y = page.prose(50, 780, [title], size=18)
    y = page.prose(50, y - 10, wrapped(prose, 90))
    for table in tables:
        y = page.prose(50, y - 14, [table.title], size=13)
        y = page.table(50, y - 6, table, is_ruled=len(table.headings) % 2 == 0)
    return pdf([page])


FILES: dict[str, Callable[[str, str, Sequence[MadeTable]], bytes]] = {
    "html": html_page,
    "docx": word,
    "xlsx": workbook,
    "csv": csv_file,
    "pdf": pdf_file,
    "md": markdown,
}


def _saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text that have at most so many characters where words allow it."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


class PdfPage:
    """The drawing of one page, whose origin is its left lower corner; lengths are in points."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def text(self, x: float, y: float, text: str, size: float = _FONT_SIZE) -> None:
        """Write one line, which begins at x on the base line y."""
        escaped = re.sub(r"([\\()])", r"\\\1", text)
        self.commands.append(f"BT /F {size} Tf {x:.1f} {y:.1f} Td ({escaped}) Tj ET")

    def rule(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line."""
        self.commands.append(f"0.5 w {x:.1f} {y:.1f} m {to_x:.1f} {to_y:.1f} l S")

    def prose(self, x: float, y: float, lines: Sequence[str], size: float = 10.0) -> float:
        """Write lines from a height downwards; returns the height below them."""
        for line in lines:
            y -= 1.25 * size
            self.text(x, y, line, size)
        return y

    def table(
        self,
        x: float,
        y: float,
        table: MadeTable,
        *,
        is_ruled: bool,
        most: int = 24,
    ) -> float:
        """Draw a table; numbers stand at the right, texts are wrapped after `most` characters."""
        lines = {spot: wrapped(spot.text, most) for spot in spots(table)}
        widths = [0.0] * len(table.headings)
        n_lines = [1] * (table.depth + len(table.rows))
        for spot, of_cell in lines.items():
            if spot.n_columns == 1:
                width = max(map(text_width, of_cell)) + 2 * _PADDING + _GAP * (not is_ruled)
                widths[spot.column] = max(widths[spot.column], width)
            if spot.n_rows == 1:
                n_lines[spot.row] = max(n_lines[spot.row], len(of_cell))
        lefts = list(accumulate(widths, initial=x))
        heights = [_LINE_HEIGHT * count + _PADDING for count in n_lines]
        tops = list(accumulate(heights, sub, initial=y))
        for spot, of_cell in lines.items():
            left = lefts[spot.column]
            right = lefts[spot.column + spot.n_columns]
            top = tops[spot.row]
            bottom = tops[spot.row + spot.n_rows]
            is_number = spot.row >= table.depth and _NUMBER.match(spot.text) is not None
            for number, line in enumerate(of_cell, start=1):
                begin = left + _PADDING
                if is_number:
                    begin = right - _PADDING - text_width(line)
                self.text(begin, top - _LINE_HEIGHT * number + 1, line)
            if is_ruled:
                self.rule(left, bottom, right, bottom)
                self.rule(left, top, right, top)
                self.rule(left, bottom, left, top)
                self.rule(right, bottom, right, top)
        return tops[-1]


def text_width(text: str) -> float:
    """About the width of a line of Helvetica in a table."""
    narrow = sum(text.count(letter) for letter in "ijltfI.,;:!' ()/-")
    return _FONT_SIZE * (0.56 * (len(text) - narrow) + 0.3 * narrow)


def pdf(pages: Sequence[PdfPage]) -> bytes:
    """A PDF file of pages."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for number, page in enumerate(pages):
        stream = "\n".join(page.commands).encode("cp1252", "replace")
        box = f"[0 0 {_PAGE[0]} {_PAGE[1]}]"
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox{box}/Resources<</Font<</F 3 0 R>>>>"
            f"/Contents {5 + 2 * number} 0 R>>".encode()
        )
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream))
    out = bytearray(b"%PDF-1.4\n")
    places = list[int]()
    for number, content in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        out += b"%010d 00000 n \n" % place
    trailer = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return bytes(out + trailer % (len(objects) + 1, start))
