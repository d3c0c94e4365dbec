"""Word and PowerPoint files: paragraphs, lists and tables in order, headings by style, notes of
slides.
"""

import io
import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rag.core.optional import require
from rag.data.documents import grid
from rag.data.documents.blocks import BULLET, Piece, clean, first_heading, not_read, stated_title

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_RELATED = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_Notes = Mapping[tuple[str, str], str]  # by the tag and the id of what refers to them
_FOOTERS = (13, 15, 16)  # date, footer and number, which are the same on every slide
_MAX_ROMAN = 4000
_ROMAN = tuple(
    zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ["m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i"],
        strict=True,
    )
)
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)


class _Numbering:
    """Counts the numbered paragraphs of a DOCX file, and gives each its number as Word shows it."""

    def __init__(self, document: Any) -> None:
        self._levels: dict[str, dict[int, Any]] = {}  # by the id of a definition
        self._lists: dict[str, tuple[str, dict[int, int]]] = {}  # definition, and own starts
        self._counts = defaultdict[str, dict[int, int]](dict)  # of definitions, which lists share
        self._begun = set[str]()
        try:
            part = document.part.part_related_by(f"{_RELATED}/numbering")
        except KeyError:
            return
        root = require("docx.oxml", "docs").parse_xml(part.blob)
        for definition in root.findall(f"{_W}abstractNum"):
            levels = {
                int(level.get(f"{_W}ilvl")): level for level in definition.findall(f"{_W}lvl")
            }
            self._levels[definition.get(f"{_W}abstractNumId")] = levels
        for entry in root.findall(f"{_W}num"):
            starts = {
                int(override.get(f"{_W}ilvl")): int(_value(override, "startOverride", "1"))
                for override in entry.findall(f"{_W}lvlOverride")
                if override.find(f"{_W}startOverride") is not None
            }
            self._lists[entry.get(f"{_W}numId")] = (_value(entry, "abstractNumId"), starts)

    def mark(self, properties: Any) -> str:
        """What the next paragraph with these properties (`numPr`) begins with."""
        number, level = _value(properties, "numId"), int(_value(properties, "ilvl", "0"))
        definition, starts = self._lists.get(number, ("", {}))
        levels = self._levels.get(definition, {})
        template = _value(levels.get(level), "lvlText")
        if _value(levels.get(level), "numFmt", "bullet") in ("bullet", "none") or not template:
            return BULLET
        counts = self._counts[definition]
        if number not in self._begun:  # a list with starts of its own begins again
            self._begun.add(number)
            for begun in starts:
                counts.pop(begun, None)
        start = starts.get(level, int(_value(levels[level], "start", "1")))
        counts[level] = counts.get(level, start - 1) + 1
        for deeper in [other for other in counts if other > level]:
            del counts[deeper]

        def shown(match: re.Match[str]) -> str:
            above = int(match[1]) - 1
            return _numeral(counts.get(above, 1), _value(levels.get(above), "numFmt"))

        return re.sub(r"%(\d)", shown, template) + " "


def _value(element: Any, name: str, default: str = "") -> str:
    """The value of a child of an element; the default where there is none."""
    child = None if element is None else element.find(f"{_W}{name}")
    return default if child is None else child.get(f"{_W}val", default)


def _numeral(number: int, kind: str) -> str:
    """A number of a list as letters, Roman numerals or digits."""
    text = str(number)
    if kind.endswith("Letter") and number > 0:
        text = string.ascii_lowercase[(number - 1) % 26] * ((number - 1) // 26 + 1)
    elif kind.endswith("Roman") and 0 < number < _MAX_ROMAN:
        text = ""
        for value, sign in _ROMAN:
            text += sign * (number // value)
            number %= value
    return text.upper() if kind.startswith("upper") else text


def word(data: bytes) -> tuple[str, list[Piece], tuple[str, ...]]:
    """Title, pieces and notes of a DOCX file, with insertions and without deletions that are still
    marked.

    Notes stand below the paragraph that refers to them. Word stores no pages; pieces have none.
    """
    document = require("docx", "docs").Document(io.BytesIO(data))
    body = document.element.body
    pieces = list(_blocks(body, document, _notes(document), _Numbering(document)))
    title = stated_title(str(document.core_properties.title)) or first_heading(pieces)
    return title, pieces, not_read(_beside_text(document, body))


def _beside_text(document: Any, body: Any) -> dict[str, int]:
    counts = {"headers and footers": 0, "comments": 0}
    parse = require("docx.oxml", "docs").parse_xml
    for relation in document.part.rels.values():
        kind = relation.reltype.removeprefix(f"{_RELATED}/")
        if kind in ("header", "footer"):
            root = parse(relation.target_part.blob)
            counts["headers and footers"] += bool(_text(root).strip())
        elif kind == "comments":
            counts["comments"] += len(parse(relation.target_part.blob).findall(f"{_W}comment"))
    return {**counts, "alt texts": _count_alt_texts(body)}


def _count_alt_texts(root: Any) -> int:
    described = (node.get("descr") for node in root.iter("{*}docPr", "{*}cNvPr"))
    return len({*filter(None, described)})


def _notes(document: Any) -> _Notes:
    parse = require("docx.oxml", "docs").parse_xml
    notes = {}
    for kind in ("footnote", "endnote"):
        try:
            part = document.part.part_related_by(f"{_RELATED}/{kind}s")
        except KeyError:
            continue
        for note in parse(part.blob).findall(f"{_W}{kind}"):
            lines = [clean(_text(paragraph)) for paragraph in note.iter(f"{_W}p")]
            notes[f"{_W}{kind}Reference", note.get(f"{_W}id")] = " ".join(filter(None, lines))
    return notes


def _blocks(parent: Any, document: Any, notes: _Notes, numbering: _Numbering) -> Iterator[Piece]:
    for child in parent:
        if child.tag == f"{_W}p":
            yield _paragraph(child, document, numbering)
            for reference in child.iter(f"{_W}footnoteReference", f"{_W}endnoteReference"):
                yield Piece("paragraph", notes.get((reference.tag, reference.get(f"{_W}id")), ""))
        elif child.tag == f"{_W}tbl":
            yield from _table(child, document, notes, numbering)
        elif child.tag in (
            f"{_W}sdt",
            f"{_W}sdtContent",
            f"{_W}customXml",
        ):  # form fields, cover pages, …
            gallery = child.find(f"{_W}sdtPr/*/{_W}docPartGallery")
            if gallery is None or gallery.get(f"{_W}val") != "Table of Contents":
                yield from _blocks(child, document, notes, numbering)


def _paragraph(element: Any, document: Any, numbering: _Numbering) -> Piece:
    style = _style(element, document)
    text = _text(element)
    if (match := _HEADING.match(style)) or style.lower() == "title":
        return Piece("heading", text, int(match[1]) if match else 1)
    if re.match(r"toc \d", style, re.IGNORECASE):
        return Piece("paragraph", "")
    own = element.find(f"{_W}pPr/{_W}numPr")
    is_item = own is not None or style.lower().startswith("list")
    if is_item and text.strip():
        properties = _style_numbering(element, document) if own is None else own
        return Piece("item", numbering.mark(properties) + text)
    if "code" in style.lower() or style.lower() in (
        "html preformatted",
        "plain text",
        "preformatted text",
    ):
        return Piece("code", text)
    return Piece("paragraph", text)


def _style(element: Any, document: Any) -> str:
    """Name of a paragraph's style, or of the heading that the style is based on."""
    style = document.styles.element.get_by_id(element.style) if element.style else None
    names = list[str]()
    while style is not None and len(names) < 10:
        names.append(str(style.name_val or ""))
        style = style.base_style
    return next(filter(_HEADING.match, names), next(filter(None, names), ""))


def _style_numbering(element: Any, document: Any) -> Any:
    """The numbering that a paragraph's style states, or a style that it is based on."""
    style = document.styles.element.get_by_id(element.style) if element.style else None
    for _ in range(10):
        if style is None:
            break
        if (properties := style.find(f"{_W}pPr/{_W}numPr")) is not None:
            return properties
        style = style.base_style
    return None


def _text(element: Any) -> str:
    parts = []
    for node in element.iter(f"{_W}t", f"{_W}tab", f"{_W}br", f"{_W}cr", f"{_W}noBreakHyphen"):
        if any(above.tag in (_FALLBACK, f"{_W}moveFrom") for above in node.iterancestors()):
            continue
        tag = node.tag.removeprefix(_W)
        parts.append(
            node.text or "" if tag == "t" else {"tab": "\t", "noBreakHyphen": "-"}.get(tag, "\n")
        )
    return "".join(parts)


def _table(element: Any, document: Any, notes: _Notes, numbering: _Numbering) -> Iterator[Piece]:
    rows = list[list[grid.Cell]]()
    above: dict[int, grid.Cell] = {}  # the last cell that begins in each column
    for row in element.iter(f"{_W}tr"):
        if next(row.iterancestors(f"{_W}tbl")) is not element:
            continue  # of a table within a cell, whose text that cell has
        is_heading = row.find(f"{_W}trPr/{_W}tblHeader") is not None
        skipped = row.find(f"{_W}trPr/{_W}gridBefore")
        column = 0 if skipped is None else int(skipped.get(f"{_W}val"))
        cells = [grid.Cell() for _ in range(column)]
        for node in row.iter(f"{_W}tc"):
            if next(node.iterancestors(f"{_W}tr")) is not row:
                continue
            cell = _cell(node, is_heading)
            merge = node.find(f"{_W}tcPr/{_W}vMerge")
            goes_on = merge is not None and merge.get(f"{_W}val", "continue") == "continue"
            if goes_on and column in above:
                above[column].row_span += 1
            else:
                above[column] = cell
                cells.append(cell)
            column += cell.column_span
        rows.append(cells)
    filled = grid.filled(rows)
    if not filled or len(filled[0]) < 2:
        for row in element.iter(f"{_W}tc"):
            yield from _blocks(row, document, notes, numbering)
    else:
        yield from grid.table(filled)


def _cell(node: Any, is_heading: bool) -> grid.Cell:
    span = node.find(f"{_W}tcPr/{_W}gridSpan")
    lines = [clean(_text(paragraph)) for paragraph in node.iter(f"{_W}p")]
    columns = int(span.get(f"{_W}val")) if span is not None else 1
    text = " ".join(filter(None, lines))
    return grid.Cell(text, column_span=max(columns, 1), is_heading=is_heading)


def slides(data: bytes) -> tuple[str, list[Piece], tuple[str, ...]]:
    """Title, pieces and notes of a PPTX file: a slide's title is its heading, its number the page;
    the speaker's notes follow.
    """
    show = require("pptx", "docs").Presentation(io.BytesIO(data))
    pieces: list[Piece] = []
    beside = Counter[str]()
    for number, slide in enumerate(show.slides, start=1):
        title = slide.shapes.title
        relations = slide.part.rels.values()
        beside["comments"] += sum(it.reltype.endswith("/comments") for it in relations)
        beside["alt texts"] += _count_alt_texts(slide.element)
        name = clean(title.text_frame.text) if title is not None else ""
        body: list[Piece] = []
        for shape in slide.shapes:
            if title is None or shape.shape_id != title.shape_id:
                body += _shape(shape)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text.split("\n")
            body += [Piece("paragraph", line) for line in notes]
        if name or any(piece.text.strip() for piece in body):
            heading = Piece("heading", name or f"Slide {number}", 1)
            pieces += [replace(piece, pages=(str(number),)) for piece in (heading, *body)]
    title = stated_title(str(show.core_properties.title)) or first_heading(pieces)
    return title, pieces, not_read(beside)


def _shape(shape: Any) -> Iterator[Piece]:
    if hasattr(shape, "shapes"):  # a group; `shape_type` raises for shapes without a geometry
        for inner in shape.shapes:
            yield from _shape(inner)
    elif getattr(shape, "has_table", False):
        rows = [
            [_slide_cell(cell) for cell in row.cells if not cell.is_spanned]
            for row in shape.table.rows
        ]
        yield from grid.table(grid.filled(rows))
    elif shape.has_text_frame and not (
        shape.is_placeholder and int(shape.placeholder_format.type or 0) in _FOOTERS
    ):
        lines = [it.text for it in shape.text_frame.paragraphs if it.text.strip()]
        is_list = len(lines) > 1
        for line in lines:
            yield Piece("item", BULLET + line) if is_list else Piece("paragraph", line)


def _slide_cell(cell: Any) -> grid.Cell:
    return grid.Cell(clean(cell.text), cell.span_height, cell.span_width)
