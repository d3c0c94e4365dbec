"""Rich text files: paragraphs, lists and tables in order, headings by their outline level or style."""

import re
from collections.abc import Iterator

from rag.core.optional import require
from rag.data.documents import tables
from rag.data.documents.blocks import BULLET, Piece, clean, first_heading

# Characters for private use, put into the source before it is converted into plain text, where they tell
# which style a paragraph has, where rows, cells and lines end, and where notes and boxes begin and end.
_STYLE, _CELL, _ROW_END, _ROW, _LINE, _NOTE, _NOTE_END = "\ue000\ue001\ue002\ue003\ue004\ue005\ue006"
_MARKS = {
    "cell": _CELL, "row": _ROW_END, "trowd": _ROW, "line": _LINE, "column": _LINE, "softline": _LINE,
    "footnote": _NOTE, "shptxt": _NOTE,
}  # fmt: skip
_LEFT_OUT = (  # what is in the first four is read like other text, "bin" has no data any more
    "field", "shp", "shpgrp", "shpinst", "bin", "binfsxn", "binsxn",
)  # fmt: skip
_TOKEN = re.compile(r"(?:\\\*)?\\([a-z]+)(-?\d+)? ?|\\\\|\\[^a-z]|[{}]", re.DOTALL)
_BINARY = re.compile(r"\\bin(\d+) ?")
_GROUP = r"(?:[^{};]|\{[^{}]*\})*?"
_NAMED = re.compile(
    rf"\{{\\s(\d+)(?!\d){_GROUP}\b(?:heading (\d)|(title)|code|source|preformatted)[^;{{}}]*;\}}",
    re.IGNORECASE,
)
_CODE_PAGE = re.compile(r"\\ansicpg\d+")
_TITLE = re.compile(r"\{\\title ((?:[^{}]|\{[^{}]*\})*)\}")
_STYLES = re.compile(rf"{_STYLE}([1-9c])")
# A row goes on where the one above it ended, if it is not described again.
_WHOLE_ROW = re.compile(
    rf"(?:{_ROW}|(?<={_ROW_END})(?=[^{_ROW}{_ROW_END}]*{_ROW_END}))(.*?){_ROW_END}", re.DOTALL
)
_NOTES = re.compile(rf"{_NOTE}([^{_NOTE}{_NOTE_END}]*){_NOTE_END}")
_BULLETED = re.compile(r"\s*[•·▪◦–o§\uf0a7\uf0b7-]\t\s*")
_NUMBERED = re.compile(r"\s*(\(?\w{1,3}[.)])\t\s*")


def rtf(data: bytes) -> tuple[str, list[Piece]]:
    """Title and pieces of an RTF file; the title is that of its properties, else the first heading."""
    source = _without_binary(data.decode("latin-1"))
    found, page = _TITLE.search(source), _CODE_PAGE.search(source)
    title = _shown(rf"{{\rtf1\ansi{page[0] if page else ''} {found[1]}}}").strip() if found else ""
    pieces = list(_pieces(_shown(_with_marks(source))))
    return title or first_heading(pieces), pieces


def _shown(source: str) -> str:
    """Plain text; characters that were written in two halves are whole."""
    text: str = require("striprtf.striprtf", "docs").rtf_to_text(source, errors="replace")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _without_binary(source: str) -> str:
    """The source without data that are not text, such as pictures: each says how many bytes it has."""
    parts, at = [], 0
    for match in _BINARY.finditer(source):
        if match.start() >= at:
            parts.append(source[at : match.start()])
            at = match.end() + int(match[1])
    return "".join([*parts, source[at:]])


def _with_marks(source: str) -> str:
    kinds = {number: level or ("1" if title else "c") for number, level, title in _NAMED.findall(source)}
    is_note = [False]  # of each open group

    def marked(match: re.Match[str]) -> str:
        word, number = match[1], match[2]
        if match[0] == "{":
            is_note.append(False)
        elif match[0] == "}":
            return f"{{{_NOTE_END}}}}}" if len(is_note) > 1 and is_note.pop() else "}"
        elif match[0] == r"\\":
            return r"{\'5c}"
        elif word == "deleted" and number != "0":
            return r"\*"
        elif word == "outlinelevel" and number and number in "012345678":
            return f"{{{_STYLE}{int(number) + 1}}}"
        elif word == "s" and number in kinds:
            return f"{{{_STYLE}{kinds[number]}}}"
        elif word in _MARKS:
            is_note[-1] = _MARKS[word] == _NOTE
            return f"{{{_MARKS[word]}}}"  # in braces, where nothing skips it
        elif word in _LEFT_OUT:
            return ""
        return match[0]

    return _TOKEN.sub(marked, source)


def _pieces(text: str) -> Iterator[Piece]:
    text = _NOTES.sub(_note, text)
    rows: list[list[str]] = []
    for place, part in enumerate(_WHOLE_ROW.split(text)):
        if place % 2:
            cells = part.replace(_ROW, "").split(_CELL)[:-1]
            rows.append([_STYLES.sub("", cell).replace(_LINE, " ") for cell in cells])
        elif part:
            yield from tables.grid(rows)
            rows = []
            yield from map(_paragraph, part.replace(_ROW, "").split("\n"))
    yield from tables.grid(rows)


def _note(match: re.Match[str]) -> str:
    """A footnote, or the text of a box, within its paragraph."""
    text = clean(_STYLES.sub("", match[1]).replace(_LINE, " "))
    return f" [{text}] " if text else ""


def _paragraph(line: str) -> Piece:
    style = _STYLES.search(line)
    text = _STYLES.sub("", line).replace(_LINE, "\n")
    if style and style[1] != "c":
        return Piece("heading", text, int(style[1]))
    if style:
        return Piece("code", text)
    if _BULLETED.match(text):
        return Piece("item", _BULLETED.sub(BULLET, text, count=1))
    return Piece("item" if _NUMBERED.match(text) else "paragraph", text)
