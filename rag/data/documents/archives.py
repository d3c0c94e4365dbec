"""EPUB books, OpenDocument texts and sheets: XML, mostly in ZIP archives, which is read as HTML."""

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from html import escape
from itertools import chain, groupby, repeat
from urllib.parse import unquote, urldefrag
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from rag.data.documents import html
from rag.data.documents.blocks import (
    MAX_CHARS,
    Content,
    Piece,
    Unreadable,
    first_heading,
    not_read,
    stated_title,
)
from rag.data.documents.grid import Row, size
from rag.data.documents.kinds import open_archive
from rag.data.documents.numerals import numeral
from rag.data.documents.plain import decode
from rag.data.documents.tables import FORMULAS, sheet

_NAMESPACE = "{{urn:oasis:names:tc:opendocument:xmlns:{}:1.0}}"
_TEXT = _NAMESPACE.format("text")
_TABLE = _NAMESPACE.format("table")
_DRAW = _NAMESPACE.format("drawing")
_OFFICE = _NAMESPACE.format("office")
_STYLE = _NAMESPACE.format("style")
_COMMENT = f"{_OFFICE}annotation"
_OBJECT = f"{_DRAW}object"
_STATED_TITLE = ".//{http://purl.org/dc/elements/1.1/}title"
# Deletions that are still marked, generated lists, comments, charts, how words are spoken, what others
# cover.
_NOT_READ = (
    f"{_TEXT}tracked-changes",
    f"{_TEXT}table-of-content",
    f"{_TEXT}alphabetical-index",
    f"{_TEXT}illustration-index",
    f"{_TEXT}table-index",
    f"{_TEXT}ruby-text",
    f"{_TABLE}covered-table-cell",
    _COMMENT,
    _OBJECT,
)
_BESIDE_CELLS = {
    _COMMENT: "cell comments",
    _OBJECT: "charts",
    f"{_DRAW}text-box": "text boxes",
    f"{_DRAW}custom-shape": "shapes",
}
_LIST = f"{_TEXT}list"
_LIST_ITEM = f"{_TEXT}list-item"
_TABLE_ROW = f"{_TABLE}table-row"
_TABLE_CELL = f"{_TABLE}table-cell"
_HTML_NAMES = {
    _LIST: "ul",
    _LIST_ITEM: "li",
    f"{_TABLE}table": "table",
    f"{_TABLE}table-header-rows": "thead",
    f"{_TABLE}table-rows": "tbody",
    f"{_TABLE}table-row-group": "tbody",
    _TABLE_ROW: "tr",
    _TABLE_CELL: "td",
}
_CODE_STYLES = ("code", "preformatted", "source")
# A word, or the share of a line by which it stands higher.
_RAISED = re.compile(r"super|[1-9]")
_MAX_BLANKS = 1000


def book(data: bytes) -> Content:
    """An EPUB book: its chapters in reading order, without the table of contents."""
    pieces: list[Piece] = []
    n_missing = 0
    with open_archive(data) as archive:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        package_path = next(container.iterfind(".//{*}rootfile")).attrib["full-path"]
        package = ElementTree.fromstring(archive.read(package_path))
        encrypted = _member(archive, "META-INF/encryption.xml")
        for path in dict.fromkeys(_chapters(package, posixpath.dirname(package_path))):
            if path not in archive.namelist():
                n_missing += 1
                continue
            # Fonts are encrypted in many books.
            if path.encode() in encrypted:
                raise Unreadable("encrypted", "get a copy without copy protection")
            source, _ = decode(archive.read(path))
            pieces += html.page(source).pieces
    title = stated_title(package.findtext(".//{*}title", ""))
    return Content(title, pieces, not_read({"chapters that are missing": n_missing}))


def _chapters(package: Element, folder: str) -> Iterator[str]:
    """The paths of the chapters of a book, in reading order; some books list each section, as a
    place in its chapter.
    """
    items = {item.get("id"): item for item in package.iterfind(".//{*}manifest/{*}item")}
    for reference in package.iterfind(".//{*}spine/{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is not None and "nav" not in item.get("properties", "").split():
            path = unquote(urldefrag(item.get("href", "")).url)
            yield posixpath.normpath(posixpath.join(folder, path))


def open_document(data: bytes) -> Content:
    """An OpenDocument text, whose footnotes and text boxes stand below their paragraph; or a
    spreadsheet, read as one of Excel is, with numbers and dates as they were shown when it was saved.
    """
    content, styles, meta = _parts(data)
    body = content.find(f"{_OFFICE}body/*")
    if body is None:
        raise Unreadable("broken file", "open and save it again", "it has no text")
    title = stated_title(meta.findtext(_STATED_TITLE, ""))
    reader = _OpenDocument(content, styles)
    if body.tag == f"{_OFFICE}spreadsheet":
        pieces, beside = _sheets(body, reader)
    else:
        pieces = []
        source = reader.block(body)
        for kind, group in groupby(html.pieces_of(source), lambda piece: piece.kind):
            if kind == "code":
                # Each line of code is a paragraph.
                pieces.append(Piece(kind, "\n".join(line.text for line in group)))
            else:
                pieces += group
        title = title or first_heading(pieces)
        beside = _beside_text(body, styles)
    beside["hidden texts"] = reader.n_hidden
    return Content(title, pieces, not_read(beside))


def _parts(data: bytes) -> tuple[Element, Element, Element]:
    """The content, the styles and the metadata of an OpenDocument file, with or without an archive."""
    if not data.startswith(b"PK"):
        root = ElementTree.fromstring(data)
        return root, root, root
    with open_archive(data) as archive:
        if b"encryption-data" in _member(archive, "META-INF/manifest.xml"):
            raise Unreadable("encrypted", "save a copy without a password")
        content, styles, meta = (
            ElementTree.fromstring(_member(archive, name))
            for name in ("content.xml", "styles.xml", "meta.xml")
        )
    return content, styles, meta


def _sheets(body: Element, reader: "_OpenDocument") -> tuple[list[Piece], Counter[str]]:
    pieces: list[Piece] = []
    beside = Counter[str]()
    for table in body.iterfind(f"{_TABLE}table"):
        for tag, what in _BESIDE_CELLS.items():
            for node in list(table.iter(tag)):
                beside[what] += 1
                # Charts may have tables.
                node.clear()
        for cell in table.iterfind(f".//{_TABLE_CELL}[@{_TABLE}formula]"):
            beside[FORMULAS] += cell.get(f"{_OFFICE}value-type") is None
        are_hidden: list[bool] = []
        for node in table.iter(f"{_TABLE}table-column"):
            are_hidden += [_is_collapsed(node)] * _n_repeats(node, "columns")
        columns: list[Row] = []
        filled = zip(*html.rows_of(reader.block(table)), strict=True)
        for column, is_hidden in zip(filled, chain(are_hidden, repeat(False)), strict=False):
            if is_hidden:
                beside["hidden columns"] += size(column) > 0
            elif size(column):
                columns.append(column)
        content = list(sheet(zip(*columns, strict=True)))
        if content:
            pieces += [Piece("heading", table.get(f"{_TABLE}name", ""), 1), *content]
    return pieces, beside


def _member(archive: ZipFile, name: str) -> bytes:
    return archive.read(name) if name in archive.namelist() else b"<none/>"


def _n_repeats(element: Element, side: str) -> int:
    return int(element.get(f"{_TABLE}number-{side}-repeated", "1"))


def _is_collapsed(element: Element) -> bool:
    """Whether a row or a column is hidden, or left out by a filter."""
    return element.get(f"{_TABLE}visibility", "visible") != "visible"


def _beside_text(body: Element, styles: Element) -> Counter[str]:
    counts = Counter[str]()
    for part in styles.iterfind(f".//{_STYLE}master-page/*"):
        # Many hold the number of the page alone.
        counts["headers and footers"] += any(map(str.isalpha, "".join(part.itertext())))
    counts["comments"] = len(list(body.iter(_COMMENT)))
    for frame in body.iter(f"{_DRAW}frame"):
        has_alt_text = any(frame.findtext(f"{{*}}{name}") for name in ("title", "desc"))
        counts["alt texts"] += has_alt_text
    return counts


class _OpenDocument:
    """Writes the parts of an OpenDocument text as HTML, and counts its lists.

    Attributes:
        n_hidden: how many parts were left out, since nobody sees them.
    """

    def __init__(self, content: Element, styles: Element) -> None:
        # The style that each style is based on.
        self._bases: dict[str, str] = {}
        # Styles of superscripts.
        self._raised = set[str]()
        self._hidden = set[str]()
        self.n_hidden = 0
        # How the levels of each list style are numbered.
        self._levels: dict[tuple[str, int], Element] = {}
        for root in (styles, content):
            for style in root.iter(f"{_STYLE}style"):
                name = style.get(f"{_STYLE}name", "")
                self._bases[name] = style.get(f"{_STYLE}parent-style-name", "")
                for properties in style:
                    if _RAISED.match(properties.get(f"{_STYLE}text-position", "")):
                        self._raised.add(name)
                    is_hidden_sheet = properties.get(f"{_TABLE}display") == "false"
                    if is_hidden_sheet or properties.get(f"{_TEXT}display") == "none":
                        self._hidden.add(name)
            for list_style in root.iter(f"{_TEXT}list-style"):
                name = list_style.get(f"{_STYLE}name", "")
                for level in list_style.iter(f"{_TEXT}list-level-style-number"):
                    self._levels[name, int(level.get(f"{_TEXT}level", "1"))] = level
        self._counts = Counter[tuple[str, int]]()

    def block(self, element: Element, list_style: str = "", level: int = 0) -> str:
        """An element that is no part of a line.

        Args:
            list_style: the style of the lists that it stands in.
            level: the number of these lists.
        """
        tag = element.tag
        if not self._is_read(element):
            return ""
        if tag in (f"{_TEXT}p", f"{_TEXT}h"):
            return self._paragraph(element)
        name = _HTML_NAMES.get(tag, "div")
        attributes = ""
        if tag == _LIST:
            list_style = element.get(f"{_TEXT}style-name", list_style)
            level += 1
            goes_on = element.get(f"{_TEXT}continue-numbering", "false")
            if element.get(f"{_TEXT}continue-list", goes_on) == "false":
                self._counts.pop((list_style, level), None)
        elif tag == _LIST_ITEM:
            attributes = self._mark(element, list_style, level)
        elif name == "table":
            attributes = f" {html.MAY_BE_LAYOUT}"
        elif tag == _TABLE_CELL:
            for side, span in (("rows", "rowspan"), ("columns", "colspan")):
                value = element.get(f"{_TABLE}number-{side}-spanned", "1")
                attributes += f' {span}="{escape(value)}"'
        children = list(element)
        # A sheet has all rows and columns that it may have.
        while name in ("table", "tr") and children and not "".join(children[-1].itertext()).strip():
            children.pop()
        inside = "".join(self.block(child, list_style, level) for child in children)
        n_repeats = _n_repeats(element, "columns") * _n_repeats(element, "rows")
        if _is_collapsed(element):
            attributes = " hidden"
            self.n_hidden += bool(inside) * n_repeats
        source = f"<{name}{attributes}>{inside}</{name}>"
        # Tables within repeated cells would grow without an end.
        if n_repeats > 1 and element.find(f".//{_TABLE}table") is None:
            if n_repeats * len(source) > MAX_CHARS:
                raise MemoryError
            source *= n_repeats
        return source

    def _is_read(self, element: Element) -> bool:
        styles = {element.get(f"{_TEXT}style-name"), element.get(f"{_TABLE}style-name")}
        is_hidden = bool(styles & self._hidden) or element.get(f"{_TEXT}display") == "none"
        self.n_hidden += is_hidden
        return not is_hidden and element.tag not in _NOT_READ

    def _mark(self, item: Element, list_style: str, level: int) -> str:
        """The attribute with the number of an entry; "" in a list without numbers."""
        numbering = self._levels.get((list_style, level))
        if numbering is None or not numbering.get(f"{_STYLE}num-format"):
            return ""
        key = list_style, level
        first = int(numbering.get(f"{_TEXT}start-value", "1"))
        following = self._counts.get(key, first - 1) + 1
        self._counts[key] = int(item.get(f"{_TEXT}start-value", following))
        n_levels = int(numbering.get(f"{_TEXT}display-levels", "1"))
        numerals = []
        for above in range(max(level - n_levels + 1, 1), level + 1):
            kind = self._levels.get((list_style, above), numbering).get(f"{_STYLE}num-format", "1")
            numerals.append(numeral(self._counts.get((list_style, above), 1), kind))
        prefix = numbering.get(f"{_STYLE}num-prefix", "")
        suffix = numbering.get(f"{_STYLE}num-suffix", "" if prefix else ".")
        mark = f"{prefix}{'.'.join(numerals)}{suffix}".strip()
        return f' {html.MARK}="{escape(mark)} "'

    def _paragraph(self, element: Element) -> str:
        style = element.get(f"{_TEXT}style-name", "")
        styles = f"{style} {self._bases.get(style, '')}".lower()
        name = "p"
        if element.tag == f"{_TEXT}h" or "title" in styles.split():
            name = f"h{min(int(element.get(f'{_TEXT}outline-level', '1')), 6)}"
        elif any(word in styles for word in _CODE_STYLES):
            name = "pre"
        below: list[Element] = []
        line = self._inline(element, below)
        return f"<{name}>{line}</{name}>" + "".join(map(self.block, below))

    def _inline(self, element: Element, below: list[Element]) -> str:
        """The text of a paragraph; what is read after it is added to `below`."""
        n_blanks = min(int(element.get(f"{_TEXT}c", "1")), _MAX_BLANKS)
        blanks = {f"{_TEXT}s": " " * n_blanks, f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}
        parts = [blanks.get(element.tag, ""), escape(element.text or "")]
        for child in element:
            # They stand in a paragraph, and are read after it.
            if child.tag == f"{_TEXT}note" or child.tag.startswith(_DRAW):
                below.append(child)
            elif self._is_read(child):
                line = self._inline(child, below)
                is_raised = child.get(f"{_TEXT}style-name") in self._raised
                parts.append(f"<sup>{line}</sup>" if is_raised else line)
            parts.append(escape(child.tail or ""))
        return "".join(parts)
