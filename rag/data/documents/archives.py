"""EPUB books and OpenDocument texts: ZIP archives of XML, which is read as HTML."""

import posixpath
from html import escape
from itertools import groupby
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from rag.data.documents import html
from rag.data.documents.blocks import Piece, Unreadable, first_heading, stated_title
from rag.data.documents.kinds import open_archive
from rag.data.documents.plain import decode

_TEXT, _TABLE, _DRAW, _OFFICE, _STYLE = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{part}:1.0}}"
    for part in ("text", "table", "drawing", "office", "style")
)
_NOT_READ = (  # deletions that are still marked, generated lists, comments, what others cover
    f"{_TEXT}tracked-changes",
    f"{_TEXT}table-of-content",
    f"{_TEXT}alphabetical-index",
    f"{_TEXT}illustration-index",
    f"{_TEXT}table-index",
    f"{_OFFICE}annotation",
    f"{_TABLE}covered-table-cell",
)
_ORDERED = f"{_TEXT}ordered-list"  # what numbered lists are called here
_NAMES = {  # in HTML
    f"{_TEXT}list": "ul",
    _ORDERED: "ol",
    f"{_TEXT}list-item": "li",
    f"{_TABLE}table": "table",
    f"{_TABLE}table-header-rows": "thead",
    f"{_TABLE}table-rows": "tbody",
    f"{_TABLE}table-row": "tr",
    f"{_TABLE}table-cell": "td",
}
_SPANS = {f"{_TABLE}number-rows-spanned": "rowspan", f"{_TABLE}number-columns-spanned": "colspan"}
_BELOW = (f"{_TEXT}note", f"{_DRAW}frame", f"{_DRAW}custom-shape")  # in a paragraph, read after it
_CODE = ("code", "preformatted", "source")
_MAX_BLANKS = 1000


def book(data: bytes) -> tuple[str, list[Piece]]:
    """Title and pieces of a book: its chapters in reading order, without the table of contents."""
    with open_archive(data) as archive:
        root = ElementTree.fromstring(archive.read("META-INF/container.xml")).find(".//{*}rootfile")
        place = root.attrib["full-path"] if root is not None else ""
        package = ElementTree.fromstring(archive.read(place))
        title = package.find(".//{*}title")
        pieces: list[Piece] = []
        items = {
            item.attrib.get("id"): item.attrib
            for item in package.iterfind(".//{*}manifest/{*}item")
        }
        for reference in package.iterfind(".//{*}spine/{*}itemref"):
            item = items.get(reference.attrib.get("idref"), {})
            name = posixpath.normpath(
                posixpath.join(posixpath.dirname(place), unquote(item.get("href", "")))
            )
            if name in archive.namelist() and "nav" not in item.get("properties", "").split():
                pieces += html.page(decode(archive.read(name))[0])[1]
        return "" if title is None else stated_title("".join(title.itertext())), pieces


def text(data: bytes) -> tuple[str, list[Piece]]:
    """Title and pieces of an ODT file; footnotes and text boxes stand below their paragraph."""
    with open_archive(data) as archive:
        names = ("META-INF/manifest.xml", "meta.xml", "content.xml")
        has = archive.namelist()
        manifest, meta, text = (archive.read(name) if name in has else b"<none/>" for name in names)
        common = archive.read("styles.xml") if "styles.xml" in has else b"<none/>"
    if b"encryption-data" in manifest:
        raise Unreadable("encrypted", "save a copy without a password")
    content = ElementTree.fromstring(text)
    body = content.find(f"{_OFFICE}body/{_OFFICE}text")
    if body is None:
        raise Unreadable("broken file", "open and save it again", "it has no text")
    styles = content.iter(f"{_STYLE}style")
    bases = {it.get(f"{_STYLE}name", ""): it.get(f"{_STYLE}parent-style-name", "") for it in styles}
    numbered = set[tuple[str, int]]()
    for root in (ElementTree.fromstring(common), content):
        numbered |= _numbered_levels(root)
    _mark_numbered(body, numbered, "", 0)
    pieces = list[Piece]()
    for kind, group in groupby(html.pieces_of(_block(body, bases)), lambda piece: piece.kind):
        members = list(group)  # each line of code is a paragraph
        pieces += [Piece(kind, "\n".join(it.text for it in members))] if kind == "code" else members
    title = ElementTree.fromstring(meta).findtext(".//{*}title", "")
    return stated_title(title) or first_heading(pieces), pieces


def _numbered_levels(root: Element) -> set[tuple[str, int]]:
    """Names of list styles, and their levels that have numbers or letters."""
    return {
        (style.get(f"{_STYLE}name", ""), int(level.get(f"{_TEXT}level", "1")))
        for style in root.iter(f"{_TEXT}list-style")
        for level in style.iter(f"{_TEXT}list-level-style-number")
        if level.get(f"{_STYLE}num-format")
    }


def _mark_numbered(
    element: Element, numbered: set[tuple[str, int]], style: str, level: int
) -> None:
    if element.tag == f"{_TEXT}list":
        style = element.get(f"{_TEXT}style-name", style)
        level += 1
        if (style, level) in numbered:
            element.tag = _ORDERED
    for child in element:
        _mark_numbered(child, numbered, style, level)


def _block(element: Element, bases: dict[str, str]) -> str:
    tag = element.tag
    if tag in _NOT_READ:
        return ""
    if tag in (f"{_TEXT}p", f"{_TEXT}h"):
        style = element.get(f"{_TEXT}style-name", "")
        styles = f"{style} {bases.get(style, '')}".lower()
        name = "pre" if any(word in styles for word in _CODE) else "p"
        if tag == f"{_TEXT}h" or "title" in styles.split():
            name = f"h{min(int(element.get(f'{_TEXT}outline-level', '1')), 6)}"
        below = list[Element]()
        line = _inline(element, below)
        return f"<{name}>{line}</{name}>" + "".join(_block(child, bases) for child in below)
    name = _NAMES.get(tag, "div")
    marks = [f' {mark}="{escape(element.get(key, "1"))}"' for key, mark in _SPANS.items()]
    attributes = "".join(marks) if name == "td" else ""
    if name == "table":
        attributes = f" {html.MAY_BE_LAYOUT}"
    return f"<{name}{attributes}>{''.join(_block(child, bases) for child in element)}</{name}>"


def _inline(element: Element, below: list[Element]) -> str:
    """The text of a paragraph; what is read after it is added to `below`."""
    count = min(int(element.get(f"{_TEXT}c", "1")), _MAX_BLANKS)
    blanks = {f"{_TEXT}s": " " * count, f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}
    parts = [blanks.get(element.tag, ""), escape(element.text or "")]
    for child in element:
        if child.tag in _BELOW:
            below.append(child)
        elif child.tag not in _NOT_READ:
            parts.append(_inline(child, below))
        parts.append(escape(child.tail or ""))
    return "".join(parts)
