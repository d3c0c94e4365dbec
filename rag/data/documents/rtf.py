"""Rich text files: paragraphs, lists and tables in order, headings by their outline level or style."""

import re
from collections.abc import Iterator

from rag.core.optional import require
from rag.data.documents import tables
from rag.data.documents.blocks import Piece, first_heading

# Characters for private use, put into the source before it is converted into plain text, where they tell
# which style a paragraph has and where rows, cells and lines end.
_STYLE, _CELL, _ROW_END, _ROW, _LINE = "\ue000\ue001\ue002\ue003\ue004"
_ENDS = {"cell": _CELL, "row": _ROW_END, "trowd": _ROW, "line": _LINE}
_CONTROL = re.compile(r"\\(cell|row|trowd|line)(?![a-z]) ?")
_OUTLINE = re.compile(r"\\outlinelevel([0-8])(?!\d)")
_STYLED = re.compile(r"\\s(\d+)(?!\d)")
_GROUP = r"(?:[^{};]|\{[^{}]*\})*?"
_NAMED = re.compile(
    rf"\{{\\s(\d+)(?!\d){_GROUP}\b(?:heading (\d)|(title)|code|source|preformatted)[^;{{}}]*;\}}",
    re.IGNORECASE,
)
_TITLE = re.compile(r"\{\\title ((?:[^{}]|\{[^{}]*\})*)\}")
_STYLES = re.compile(rf"^\s*(?:{_STYLE}([1-9c])\s?)+")
_WHOLE_ROW = re.compile(rf"{_ROW}+(.*?){_ROW_END}", re.DOTALL)
BULLETED = re.compile(r"\s*[•·▪◦–o\uf0a7\uf0b7-]\t\s*")
_NUMBERED = re.compile(r"\s*(\(?\w{1,3}[.)])\t\s*")


def rtf(data: bytes) -> tuple[str, list[Piece]]:
    """Title and pieces of an RTF file; the title is that of its properties, else the first heading."""
    source = data.decode("latin-1")
    to_text = require("striprtf.striprtf", "docs").rtf_to_text
    pieces = list(_pieces(to_text(_with_marks(source), errors="replace")))
    found = _TITLE.search(source)
    title = to_text(rf"{{\rtf1\ansi {found[1]}}}", errors="replace").strip() if found else ""
    return title or first_heading(pieces), pieces


def _with_marks(source: str) -> str:
    kinds = {number: level or ("1" if title else "c") for number, level, title in _NAMED.findall(source)}
    source = _OUTLINE.sub(lambda match: match[0] + _mark(_STYLE, str(int(match[1]) + 1)), source)
    source = _STYLED.sub(
        lambda match: match[0] + (_mark(_STYLE, kinds[match[1]]) if match[1] in kinds else ""), source
    )
    return _CONTROL.sub(lambda match: _mark(_ENDS[match[1]]), source)


def _mark(character: str, kind: str = "") -> str:
    return rf"\u{ord(character)}?{kind}"


def _pieces(text: str) -> Iterator[Piece]:
    rows: list[list[str]] = []
    for place, part in enumerate(_WHOLE_ROW.split(text)):
        if place % 2:
            cells = part.replace(_ROW, "").split(_CELL)[:-1]
            rows.append([_STYLES.sub("", cell).replace(_LINE, " ") for cell in cells])
        elif part:
            yield from tables.grid(rows)
            rows = []
            yield from map(_paragraph, part.split("\n"))
    yield from tables.grid(rows)


def _paragraph(line: str) -> Piece:
    style = _STYLES.match(line)
    text = _STYLES.sub("", line).replace(_LINE, "\n")
    if style and style[1] != "c":
        return Piece("heading", text, int(style[1]))
    if style:
        return Piece("code", text)
    if BULLETED.match(text):
        return Piece("item", BULLETED.sub("• ", text, count=1))
    return Piece("item" if _NUMBERED.match(text) else "paragraph", text)
