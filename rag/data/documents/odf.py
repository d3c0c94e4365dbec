"""OpenDocument files, as LibreOffice writes them: texts, spreadsheets and presentations."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from rag.data.documents import tables
from rag.data.documents.blocks import BULLET, Piece, Unreadable, clean, first_heading
from rag.data.documents.limits import Limits, open_archive
from rag.data.documents.sheets import Row, sheet, shown, without_empty_columns

_TEXT, _TABLE, _DRAW, _OFFICE, _STYLE, _SLIDES = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{part}:1.0}}"
    for part in ("text", "table", "drawing", "office", "style", "presentation")
)
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_NOT_READ = (  # deletions that are still marked, generated lists, comments
    f"{_TEXT}tracked-changes", f"{_TEXT}table-of-content", f"{_TEXT}alphabetical-index",
    f"{_TEXT}illustration-index", f"{_TEXT}table-index", f"{_OFFICE}annotation",
)  # fmt: skip
_BELOW = (f"{_TEXT}note", f"{_DRAW}frame", f"{_DRAW}custom-shape")  # in a paragraph, read after it
_FOOTERS = ("date-time", "footer", "header", "page-number")
_CODE = ("code", "preformatted", "source")
_MAX_EMPTY_CELLS = 1000  # next to each other


def text(data: bytes, limits: Limits) -> tuple[str, list[Piece]]:
    """Title and pieces of an ODT file; footnotes and text boxes stand below their paragraph.

    Pages are not stored, so pieces have none.

    Raises:
        Unreadable: it is damaged or has a password.
    """
    title, content = _open(data, limits)
    pieces = list(_joined(_Blocks(content).of(_body(content, "text"))))
    return title or first_heading(pieces), pieces


def spreadsheet(data: bytes, limits: Limits) -> tuple[str, list[Piece]]:
    """Title and pieces of an ODS file: each sheet a section. See `text` for errors."""
    title, content = _open(data, limits)
    sheets = _body(content, "spreadsheet").findall(f"{_TABLE}table")
    limits.check_pages(len(sheets), "sheets")
    hidden = {
        style.get(f"{_STYLE}name")
        for style in content.iter(f"{_STYLE}style")
        if any(properties.get(f"{_TABLE}display") == "false" for properties in style)
    }
    pieces: list[Piece] = []
    for table in sheets:
        if table.get(f"{_TABLE}style-name") in hidden:
            continue
        rows = list(sheet(without_empty_columns(list(_rows(table, limits)))))
        if rows:
            pieces += [Piece("heading", table.get(f"{_TABLE}name", ""), 1), *rows]
    return title, pieces


def presentation(data: bytes, limits: Limits) -> tuple[str, list[Piece]]:
    """Title and pieces of an ODP file: a slide's title is its heading, its number the page; notes follow.

    See `text` for errors.
    """
    title, content = _open(data, limits)
    slides = _body(content, "presentation").findall(f"{_DRAW}page")
    limits.check_pages(len(slides), "slides")
    blocks, pieces = _Blocks(content), list[Piece]()
    for page, slide in enumerate(slides, start=1):
        titles = [frame for frame in slide if frame.get(f"{_SLIDES}class") == "title"]
        name = clean(" ".join(piece.text for frame in titles for piece in blocks.of(frame)))
        body = [piece for frame in slide if frame not in titles for piece in _listed(frame, blocks)]
        if name or any(piece.text.strip() for piece in body):
            pieces.append(Piece("heading", name or f"Slide {page}", 1, str(page)))
            pieces += [Piece(piece.kind, piece.text, page=str(page)) for piece in body]
    return title or (pieces[0].text if pieces else ""), pieces


def _listed(frame: Element, blocks: _Blocks) -> Iterator[Piece]:
    """The pieces of a part of a slide; several paragraphs are a list, except those of notes."""
    pieces = [piece for piece in blocks.of([frame]) if piece.text.strip()]
    is_list = len(pieces) > 1 and frame.tag != f"{_SLIDES}notes"
    for piece in pieces:
        if is_list and piece.kind == "paragraph":
            piece = Piece("item", BULLET + piece.text)
        yield piece


def _open(data: bytes, limits: Limits) -> tuple[str, Element]:
    """The title among the properties, and the content."""
    with open_archive(data, limits) as archive:
        if b"encryption-data" in _member(archive, "META-INF/manifest.xml"):
            raise Unreadable("encrypted", "save a copy without a password")
        properties = _member(archive, "meta.xml") or b"<none/>"
        title = ElementTree.fromstring(properties).findtext(f".//{_TITLE}", "")
        return clean(title), ElementTree.fromstring(archive.read("content.xml"))


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    return archive.read(name) if name in archive.namelist() else b""


def _body(content: Element, kind: str) -> Element:
    found = content.find(f"{_OFFICE}body/{_OFFICE}{kind}")
    if found is None:
        raise Unreadable("broken file", "open and save it again", f"it has no {kind}")
    return found


class _Blocks:
    """Reads paragraphs, lists and tables; knows the styles that a document's own ones are based on."""

    def __init__(self, content: Element) -> None:
        self._bases = {
            style.get(f"{_STYLE}name"): style.get(f"{_STYLE}parent-style-name", "")
            for style in content.iter(f"{_STYLE}style")
        }

    def of(self, elements: Iterable[Element], in_list: bool = False) -> Iterator[Piece]:
        mark = BULLET if in_list else ""
        for element in elements:
            if element.tag in (f"{_TEXT}p", f"{_TEXT}h"):
                yield self._paragraph(element, in_list, mark)
                mark = ""  # further paragraphs of an entry
                yield from self.of(_below(element))
            elif element.tag == f"{_TABLE}table":
                yield from self._table(element)
            elif element.tag not in _NOT_READ and element.get(f"{_SLIDES}class") not in _FOOTERS:
                yield from self.of(element, in_list or element.tag == f"{_TEXT}list")

    def _paragraph(self, element: Element, in_list: bool, mark: str) -> Piece:
        words = _text(element)
        if element.tag == f"{_TEXT}h":
            return Piece("heading", words, int(element.get(f"{_TEXT}outline-level", "1")))
        style = element.get(f"{_TEXT}style-name", "")
        names = f"{style} {self._bases.get(style, '')}".lower()
        if "title" in names.split():
            return Piece("heading", words, 1)
        if in_list:
            return Piece("item", mark + words if words.strip() else "")
        return Piece("code" if any(word in names for word in _CODE) else "paragraph", words)

    def _table(self, table: Element) -> Iterator[Piece]:
        cells = []
        for row in _own_rows(table):
            texts, covered = list[str](), 0
            for cell in row:
                count = int(cell.get(f"{_TABLE}number-columns-repeated", "1"))
                if cell.tag == f"{_TABLE}covered-table-cell":  # by the cell before it, or by one above
                    texts += [""] * min(max(count - covered, 0), _MAX_EMPTY_CELLS)
                    covered = max(covered - count, 0)
                elif cell.tag == f"{_TABLE}table-cell":
                    span = int(cell.get(f"{_TABLE}number-columns-spanned", "1"))
                    lines = (clean(piece.text) for piece in self.of(cell))
                    texts += [" ".join(filter(None, lines))] * min(count * span, _MAX_EMPTY_CELLS)
                    covered = span - 1
            cells.append(texts)
        if max(map(len, cells), default=0) < 2:
            yield from self.of(cell for row in _own_rows(table) for cell in row)
        else:
            yield from tables.grid(cells)


def _own_rows(table: Element) -> Iterator[Element]:
    """Rows of a table, without those of tables in its cells."""
    for child in table:
        if child.tag == f"{_TABLE}table-row":
            yield child
        elif child.tag in (f"{_TABLE}table-{part}" for part in ("header-rows", "rows", "row-group")):
            yield from _own_rows(child)


def _rows(table: Element, limits: Limits) -> Iterator[Row]:
    """The rows of a sheet; one empty row in place of many."""
    chars = 0
    for row in _own_rows(table):
        cells: list[str] = []
        for cell in row:
            count, value = int(cell.get(f"{_TABLE}number-columns-repeated", "1")), _value(cell)
            cells += [value] * (count if value else min(count, _MAX_EMPTY_CELLS))
        count = int(row.get(f"{_TABLE}number-rows-repeated", "1")) if any(cells) else 1
        chars += count * sum(map(len, cells))
        if chars > limits.max_chars:
            raise Unreadable("too long", "split it", f"more than {limits.max_chars:,} characters")
        yield from [cells] * count


def _value(cell: Element) -> str:
    """A number with all its digits, a date as in ISO 8601, everything else as it is displayed."""
    kind = cell.get(f"{_OFFICE}value-type")
    if kind == "float":
        return shown(float(cell.get(f"{_OFFICE}value", "nan")))
    if kind == "date":
        return shown(datetime.datetime.fromisoformat(cell.get(f"{_OFFICE}date-value", "")))
    return clean(" ".join(_text(paragraph) for paragraph in cell.findall(f"{_TEXT}p")))


def _text(element: Element) -> str:
    """The text of a paragraph, without what is read after it."""
    parts = [element.text or ""]
    for child in element:
        if child.tag == f"{_TEXT}s":
            parts.append(" " * min(int(child.get(f"{_TEXT}c", "1")), _MAX_EMPTY_CELLS))
        elif child.tag in (f"{_TEXT}tab", f"{_TEXT}line-break"):
            parts.append("\t" if child.tag == f"{_TEXT}tab" else "\n")
        elif child.tag not in (*_NOT_READ, *_BELOW):
            parts.append(_text(child))
        parts.append(child.tail or "")
    return "".join(parts)


def _below(paragraph: Element) -> Iterator[Element]:
    """Footnotes, boxes and shapes in a paragraph, the outermost ones."""
    for child in paragraph:
        if child.tag in _BELOW:
            yield child
        else:
            yield from _below(child)


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Lines of code that follow each other become one piece: each is a paragraph of its own."""
    for kind, group in groupby(pieces, lambda piece: piece.kind):
        if kind == "code":
            yield Piece("code", "\n".join(piece.text for piece in group))
        else:
            yield from group
