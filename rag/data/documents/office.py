"""Word and PowerPoint files: paragraphs, lists and tables in order, headings by style, notes of
slides.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Any

from rag.core.optional import require
from rag.data.documents import grid
from rag.data.documents.blocks import (
    BULLET,
    Content,
    Piece,
    clean,
    first_heading,
    not_read,
    stated_title,
)
from rag.data.documents.kinds import as_document, count_drawn
from rag.data.documents.numerals import numeral, with_exponents

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_VANISH = f"{_W}rPr/{_W}vanish"
_RELATED = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_FALLBACK = f"{_COMPATIBILITY}Fallback"
# Kinds of notes, by the tag of what refers to them.
_NOTES = {f"{_W}footnoteReference": "footnote", f"{_W}endnoteReference": "endnote"}
# What a reader of the newest state does not see: the older form of a shape, and changes.
_REPLACED = (_FALLBACK, f"{_W}moveFrom", f"{_W}del")
# Form fields, cover pages, …
_CONTAINERS = (f"{_W}sdt", f"{_W}sdtContent", f"{_W}customXml")
_TEXT_OF = {
    # A text box in a paragraph has paragraphs of its own.
    f"{_W}p": "\n",
    f"{_W}tab": "\t",
    f"{_W}noBreakHyphen": "-",
    f"{_W}br": "\n",
    f"{_W}cr": "\n",
}
# Of the font "Symbol", by its codes.
_SYMBOLS = dict(
    zip(
        "ABCDEFGHIKLMNOPQRSTUWXYZabcdefghiklmnopqrstuwxyz£¥§®°±²³´·¸¹»¼Å",
        "ΑΒΧΔΕΦΓΗΙΚΛΜΝΟΠΘΡΣΤΥΩΞΨΖαβχδεφγηικλμνοπθρστυωξψζ≤∞♣→°±″≥×•÷≠≈…⊕",
        strict=True,
    )
)
_HEADING = re.compile(r"heading (\d)")
_CODE_STYLES = ("html preformatted", "plain text", "preformatted text")
# Styles may be based on each other in a circle.
_MAX_BASES = 10
# Kinds of numbers in lists, as `numeral` calls them.
_NUMERALS = {"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I"}
_SLIDE_NUMERALS = {"alphaLc": "a", "alphaUc": "A", "romanLc": "i", "romanUc": "I"}
# Those of a style, and those in rows.
_HIDDEN_RUNS = (
    ".//w:r[not(w:rPr/w:vanish)][ancestor::w:tr/w:trPr/w:hidden or w:rPr/w:rStyle/@w:val='{0}'"
    " or ancestor::w:p/w:pPr/w:pStyle/@w:val='{0}']"
)
_HIDDEN_SHAPES = ".//*[*/p:cNvPr[@hidden='1' or @hidden='true']]"
# A title, a centred one, and a vertical one.
_TITLES = (1, 3, 5)
# Date, footer and number, which are the same on every slide.
_FOOTERS = (13, 15, 16)


def word(data: bytes) -> Content:
    """A DOCX file, with insertions and without deletions that are still marked.

    Notes stand below the paragraph that refers to them. Word stores no pages; pieces have none.
    """
    document = require("docx", "docs").Document(as_document(data, b"wordprocessingml.document"))
    reader = _WordReader(document)
    pieces = list(reader.blocks(reader.body))
    title = stated_title(str(reader.document.core_properties.title))
    beside = {**reader.beside_text(), **count_drawn(data)}
    return Content(title or first_heading(pieces), pieces, not_read(beside))


class _WordReader:
    """Reads the body of a DOCX file."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.body = document.element.body
        # What a row or a style hides, as if it were hidden by itself.
        styles = filter(self._hides, document.styles.element.xpath("w:style/@w:styleId"))
        for style in ("", *styles):
            for run in self.body.xpath(_HIDDEN_RUNS.format(style)):
                run.get_or_add_rPr().get_or_add_vanish()
        self._numbering = _Numbering(self._related("numbering"))
        # By the tag and the id of what refers to them.
        self._notes: dict[tuple[str, str], str] = {}
        for tag, kind in _NOTES.items():
            for note in self._related(f"{kind}s").findall(f"{_W}{kind}"):
                self._notes[tag, note.get(f"{_W}id")] = _text(note)

    def _related(self, kind: str) -> Any:
        """The root of another part of the file, an empty element if there is none."""
        parse = require("docx.oxml", "docs").parse_xml
        try:
            return parse(self.document.part.part_related_by(f"{_RELATED}/{kind}").blob)
        except KeyError:
            return parse("<none/>")

    def beside_text(self) -> dict[str, int]:
        """What the file holds beside its text."""
        parse = require("docx.oxml", "docs").parse_xml
        n_headers = 0
        n_comments = len(self._related("comments").findall(f"{_W}comment"))
        for relation in self.document.part.rels.values():
            if relation.reltype in (f"{_RELATED}/header", f"{_RELATED}/footer"):
                n_headers += bool(_text(parse(relation.target_part.blob)).strip())
        return {
            "headers and footers": n_headers,
            "comments": n_comments,
            "symbols": sum(not _symbol(node) for node in self.body.iter(f"{_W}sym")),
            "inserted files": len(list(self.body.iter(f"{_W}altChunk"))),
            "hidden texts": sum(_is_hidden(node.getparent()) for node in self.body.iter(f"{_W}t")),
            **_beside_words(self.body),
        }

    def blocks(self, parent: Any) -> Iterator[Piece]:
        """The pieces of the paragraphs and tables below an element."""
        for child in parent:
            if child.tag == f"{_W}p":
                yield self._paragraph(child)
                yield from self._notes_of(child)
            elif child.tag == f"{_W}tbl":
                yield from self._table(child)
            elif child.tag in _CONTAINERS:
                gallery = child.find(f"{_W}sdtPr/*/{_W}docPartGallery")
                if gallery is None or gallery.get(f"{_W}val") != "Table of Contents":
                    yield from self.blocks(child)

    def _notes_of(self, element: Any) -> Iterator[Piece]:
        for reference in element.iter(*_NOTES):
            note = self._notes.get((reference.tag, reference.get(f"{_W}id")), "")
            yield Piece("paragraph", note)

    def _paragraph(self, element: Any) -> Piece:
        styles = self._styles(element.style)
        names = [str(style.name_val or "").lower() for style in styles]
        name = next(filter(None, names), "")
        text = _text(element)
        if name == "title":
            return Piece("heading", text, 1)
        if re.match(r"toc \d", name):
            return Piece("paragraph", "")
        numbering = None
        for owner in (element, *styles):
            if numbering is None:
                numbering = owner.find(f"{_W}pPr/{_W}numPr")
        mark = ""
        if text.strip() and (numbering is not None or name.startswith("list")):
            mark = self._numbering.mark(numbering)
        for heading in filter(None, map(_HEADING.match, names)):
            return Piece("heading", mark.removeprefix(BULLET) + text, int(heading[1]))
        if mark:
            return Piece("item", mark + text)
        is_code = "code" in name or name in _CODE_STYLES
        return Piece("code" if is_code else "paragraph", text)

    def _hides(self, style_id: str) -> bool:
        """Whether a style hides text: the nearest that says so decides."""
        for style in self._styles(style_id):
            if style.find(_VANISH) is not None:
                return _is_hidden(style)
        return False

    def _styles(self, style_id: str | None) -> list[Any]:
        """A style, and those that it is based on."""
        styles: list[Any] = []
        style = self.document.styles.element.get_by_id(style_id)
        while style is not None and len(styles) < _MAX_BASES:
            styles.append(style)
            style = style.base_style
        return styles

    def _table(self, element: Any) -> Iterator[Piece]:
        rows: list[list[grid.Cell]] = []
        nodes: list[Any] = []
        # The last cell that begins in each column.
        above: dict[int, grid.Cell] = {}
        for row in element.iter(f"{_W}tr"):
            # The text of a table within a cell is that of the cell.
            is_deleted = row.find(f"{_W}trPr/{_W}del") is not None
            if is_deleted or next(row.iterancestors(f"{_W}tbl")) is not element:
                continue
            is_heading = row.find(f"{_W}trPr/{_W}tblHeader") is not None
            column = int(_value(row.find(f"{_W}trPr"), "gridBefore", "0"))
            cells = [grid.Cell() for _ in range(column)]
            for node in row.iter(f"{_W}tc"):
                if next(node.iterancestors(f"{_W}tr")) is not row:
                    continue
                nodes.append(node)
                properties = node.find(f"{_W}tcPr")
                n_columns = max(int(_value(properties, "gridSpan", "1")), 1)
                merged = node.xpath("w:tcPr/w:vMerge[not(@w:val) or @w:val='continue']")
                if column in above and merged:
                    above[column].row_span += 1
                else:
                    cell = grid.Cell(clean(_text(node)), 1, n_columns, is_heading)
                    above[column] = cell
                    cells.append(cell)
                column += n_columns
            rows.append(cells)
        filled = grid.filled(rows)
        if filled and len(filled[0]) > 1:
            yield from grid.table(filled)
            yield from self._notes_of(element)
            return
        for node in nodes:
            yield from self.blocks(node)


class _Numbering:
    """Counts the numbered paragraphs of a DOCX file, and gives each its number as Word shows it."""

    def __init__(self, root: Any) -> None:
        # The levels of each definition, by its id.
        self._levels: dict[str, dict[int, Any]] = {}
        # The definition of each list, and the starts that the list states.
        self._lists: dict[str, tuple[str, dict[int, int]]] = {}
        # Of definitions, which lists share.
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._begun = set[str]()
        for definition in root.findall(f"{_W}abstractNum"):
            levels = {_level(level): level for level in definition.findall(f"{_W}lvl")}
            self._levels[definition.get(f"{_W}abstractNumId")] = levels
        for entry in root.findall(f"{_W}num"):
            starts: dict[int, int] = {}
            for override in entry.findall(f"{_W}lvlOverride"):
                if override.find(f"{_W}startOverride") is not None:
                    starts[_level(override)] = int(_value(override, "startOverride", "1"))
            self._lists[entry.get(f"{_W}numId")] = (_value(entry, "abstractNumId"), starts)

    def mark(self, properties: Any) -> str:
        """What the next paragraph with these properties (`numPr`) begins with."""
        list_id = _value(properties, "numId")
        level = int(_value(properties, "ilvl", "0"))
        definition, starts = self._lists.get(list_id, ("", {}))
        levels = self._levels.get(definition, {})
        template = _value(levels.get(level), "lvlText")
        if _value(levels.get(level), "numFmt", "bullet") in ("bullet", "none") or not template:
            return BULLET
        counts = self._counts[definition]
        if list_id not in self._begun:
            self._begun.add(list_id)
            # A list that states its starts begins again.
            for restarted in starts:
                counts.pop(restarted, None)
        start = starts.get(level, int(_value(levels[level], "start", "1")))
        counts[level] = counts.get(level, start - 1) + 1
        for deeper in [other for other in counts if other > level]:
            del counts[deeper]

        def number(match: re.Match[str]) -> str:
            above = int(match[1]) - 1
            kind = _value(levels.get(above), "numFmt")
            return numeral(counts.get(above, 1), _NUMERALS.get(kind, ""))

        return re.sub(r"%(\d)", number, template) + " "


def _level(element: Any) -> int:
    return int(element.get(f"{_W}ilvl"))


def _value(element: Any, name: str, default: str = "") -> str:
    """The value of a child of an element; the default where there is none."""
    child = None if element is None else element.find(f"{_W}{name}")
    return default if child is None else child.get(f"{_W}val", default)


def _text(element: Any) -> str:
    runs: list[tuple[str, bool]] = []
    for node in element.iter(f"{_W}t", f"{_W}sym", *_TEXT_OF):
        ancestors = {ancestor.tag for ancestor in node.iterancestors()}
        run = node.getparent()
        if ancestors.isdisjoint(_REPLACED) and not _is_hidden(run):
            style = run.find(f"{_W}rPr")
            # LibreOffice raises some exponents by so many half points.
            is_raised = _value(style, "position").startswith(tuple("123456789"))
            is_raised = is_raised or _value(style, "vertAlign") == "superscript"
            text = _TEXT_OF.get(node.tag) or node.text or _symbol(node)
            runs.append((text, is_raised))
    return with_exponents(runs)


def _symbol(node: Any) -> str:
    """The letter of an element `sym` in the font Symbol; "" for that of another font, or none."""
    if node.get(f"{_W}font") != "Symbol":
        return ""
    # Codes may be those of the private area of Unicode.
    return _SYMBOLS.get(chr(int(node.get(f"{_W}char"), 16) & 0xFF), "")


def _is_hidden(run: Any) -> bool:
    mark = run.find(_VANISH)
    return mark is not None and mark.get(f"{_W}val", "1") not in ("0", "false", "off")


def _beside_words(root: Any) -> dict[str, int]:
    """What stands beside the words of a text or a slide."""
    described = {node.get("descr") for node in root.iter("{*}docPr", "{*}cNvPr")}
    return {
        "alt texts": len(described - {None, ""}),
        "equations": len(list(root.iter("{*}oMath"))),
    }


def slides(data: bytes) -> Content:
    """A PPTX file: a slide's title is its heading, its number the page; the speaker's notes
    follow.
    """
    show = require("pptx", "docs").Presentation(as_document(data, b"presentationml.presentation"))
    pieces: list[Piece] = []
    beside = Counter[str]()
    for number, slide in enumerate(show.slides, start=1):
        if slide.element.get("show") in ("0", "false"):
            beside["hidden slides"] += 1
            continue
        for shape in slide.element.xpath(_HIDDEN_SHAPES):
            shape.getparent().remove(shape)
            beside["hidden shapes"] += 1
        for relation in slide.part.rels.values():
            beside["comments"] += relation.reltype.endswith("/comments")
        beside.update(_beside_words(slide.element))
        # Shapes that only newer programs show, such as a text with an equation.
        for choice in list(slide.element.iter(f"{_COMPATIBILITY}Choice")):
            for shape in list(choice):
                choice.getparent().addprevious(shape)
        body = list(_slide_body(slide))
        titles = [shape for shape in slide.shapes if _is_placeholder(shape, _TITLES)]
        name = clean(" ".join(_frame_text(shape.text_frame) for shape in titles))
        if name or any(piece.text.strip() for piece in body):
            heading = Piece("heading", name or f"Slide {number}", 1)
            pieces += [replace(piece, pages=(str(number),)) for piece in (heading, *body)]
    title = stated_title(str(show.core_properties.title))
    beside.update(count_drawn(data))
    return Content(title or first_heading(pieces), pieces, not_read(beside))


def _slide_body(slide: Any) -> Iterator[Piece]:
    for shape in slide.shapes:
        if not _is_placeholder(shape, _TITLES):
            yield from _shape(shape)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        for line in _frame_text(slide.notes_slide.notes_text_frame).split("\n"):
            yield Piece("paragraph", line)


def _shape(shape: Any) -> Iterator[Piece]:
    # The kind of a shape cannot be asked for: `shape_type` raises for shapes without a geometry.
    if hasattr(shape, "shapes"):
        for inner in shape.shapes:
            yield from _shape(inner)
    elif getattr(shape, "has_table", False):
        rows = []
        for row in shape.table.rows:
            rows.append([_slide_cell(cell) for cell in row.cells if not cell.is_spanned])
        yield from grid.table(grid.filled(rows))
    elif shape.has_text_frame and not _is_placeholder(shape, _FOOTERS):
        lines = list(_lines(shape.text_frame))
        for mark, line in lines:
            entry = Piece("item", (mark or BULLET) + line)
            yield entry if len(lines) > 1 else Piece("paragraph", mark + line)


def _slide_cell(cell: Any) -> grid.Cell:
    return grid.Cell(clean(_frame_text(cell.text_frame)), cell.span_height, cell.span_width)


def _frame_text(frame: Any) -> str:
    """The paragraphs of a text frame, each a line."""
    return "\n".join(map("".join, _lines(frame)))


def _lines(frame: Any) -> Iterator[tuple[str, str]]:
    """The number that each paragraph of a text frame shows, "" without any, and its text."""
    counts: dict[int, int] = {}
    for paragraph in frame.paragraphs:
        runs = paragraph._p.content_children
        text = with_exponents((run.text, run.xpath("a:rPr/@baseline > 0")) for run in runs)
        if not text.strip():
            continue
        level = paragraph.level
        before = counts.get(level)
        counts = {upper: count for upper, count in counts.items() if upper < level}
        mark = ""
        numbering = paragraph._p.find("{*}pPr/{*}buAutoNum")
        if numbering is not None:
            counts[level] = before + 1 if before else int(numbering.get("startAt", "1"))
            kind = numbering.get("type")
            number = numeral(counts[level], _SLIDE_NUMERALS.get(kind[:7], ""))
            mark = f"{number}) " if "Paren" in kind else f"{number}. "
        yield mark, text


def _is_placeholder(shape: Any, kinds: Container[int]) -> bool:
    return shape.is_placeholder and shape.placeholder_format.type in kinds
