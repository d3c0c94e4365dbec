"""Text files, whatever their encoding: plain text, source code, Markdown."""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rag.core.optional import require
from rag.data.documents import html
from rag.data.documents.blocks import BULLET, Content, Piece, Unreadable, first_heading

_BYTE_ORDER_MARKED = ("utf-8-sig", "utf-16", "utf-32")
# What browsers and mail programs read for the encodings that texts declare: those of Windows, which
# have more letters.
_BROADER = {
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_DECLARED = re.compile(rb"""(?:charset|encoding|coding)\s*[=:]\s*["']?\s*([A-Za-z][\w.:-]+)""")
# Of letters beyond ASCII: more is no Western European text.
_LATIN_SHARE = 0.5
# Words of another alphabet, which ASCII's letters in tags may outnumber; letters of DOS and of old
# Macs, which are signs in Windows-1252; binary data.
_NOT_WESTERN = re.compile(r"[^\W\d_a-zA-Z]{5}|[a-z][‚„”ŽŠŸ‡†‰ˆ][a-z]|[\0-\x08]")
# What the letters of Central European, Baltic, Romanian and Turkish code pages are in Windows-1252,
# beside letters that no Western European language writes beside them, or only in names.
_MISREAD = re.compile(
    r"[a-z][³¹¿¾±¶º¼][a-z]|[eouahp]¾|(?<![\dn])[ªº][a-z]"
    # Czech, Slovak, Croatian, Slovene, Polish.
    r"|è[eíáùúòzk]|[ae]è|ì[jiekzøhvîèò]|[veoa]ì[a-z]|ø[íáèù]|[ayz]ø|[kevzj]ù|ù[vzjè¾]"
    r"|[šž].{0,20}[øìèùò]|[øìèùò].{0,20}[šž]|iæ\b|[oy]æ|ê[dkgz]|[jw]ê|ñ[sck]"
    # Hungarian, where Estonian has no letter with an acute, and Portuguese an "e" behind.
    r"|[áéíóú][^õ]{0,40}õ(?!e)|û[kdvgzpbjhfí]|[zyjkvg]û"
    # Romanian, Turkish, Lithuanian, Latvian.
    r"|ã[rtmlcdpugvbfj]|ç[etijrldnskzgbvpmýü]|ð[ýü]|[zycvgþð]ý|ý[zycvþ]"
    r"|þ.{0,20}[øëã]|[øëã].{0,20}þ|[kpmztj]ð|þ[tlmksdnzc]|[eopkbcvhz]þ|î[bgkvjzp]|â[jzkv]|[kzj]â",
    re.IGNORECASE,
)
# Of letters beyond ASCII; names of other languages are rarer.
_MISREAD_SHARE = 0.02
# What Python decodes a byte to that is not UTF-8, and the byte's character in Windows-1252.
_ODD_BYTES = {0xDC00 + byte: bytes([byte]).decode("cp1252", "replace") for byte in range(128, 256)}

# What terminals take as colours and links, and letters that the next one is printed over.
_OF_TERMINALS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\].*?(?:\x07|\x1b\\))|[^\n]\x08")
_EMPTY_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_UNDERLINE = re.compile(r"([=\-~^*#])\1{2,}\s*\Z")
_ENTRY = re.compile(r"\s*([-*+•·–]|\(?\d{1,3}[.)]|\(?[a-z][.)]|§ ?\d{1,3}[a-z]?)\s+(?=\S)")
_RULE = re.compile(r"[\s=\-_*#~+.]+\Z")
_LOG_TIME = re.compile(r"\W{0,2}\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\W{0,2}\w{3} [ \d]\d \d\d:\d\d:\d\d")
_MAX_HEADING_CHARS = 100
# In a paragraph of several lines the longest is longer, and all but the last have this share of it.
_MIN_PROSE_CHARS = 40
_MIN_FULL_SHARE = 0.6

# GitHub's notes: "> [!WARNING]".
_ALERT = re.compile(r"\A\[!(\w+)\]\s*")
# "# Title {#anchor}".
_ATTRIBUTES = re.compile(r"\s*\{[#.:][^{}]*\}\s*\Z")


def decode(data: bytes) -> tuple[str, list[str]]:
    r"""Text of bytes, and a note if its encoding had to be guessed.

    A byte-order mark decides, then UTF-8 if it fits, then what the file declares. Western European
    text in Windows-1252 is recognised, also within UTF-8, as where logs were joined.

    Raises:
        Unreadable: the bytes are other data.

    Example:
        >>> decode("café au lait".encode("cp1252"))
        ('café au lait', ['read as Windows-1252'])
    """
    by_mark = json.detect_encoding(data)
    if by_mark in _BYTE_ORDER_MARKED:
        return data.decode(by_mark, "replace"), []
    if b"\0" in data:
        raise Unreadable("binary data", "remove it, or give it the name of its real format")
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError as error:
        first_wrong = error.start + 1
    declared = _DECLARED.search(data[:1024])
    if declared:
        with suppress(LookupError, UnicodeDecodeError):
            return decode_as(data, declared[1].decode()), []
    joined = data.decode("utf-8", "surrogateescape")
    n_odd = sum(ord(character) in _ODD_BYTES for character in joined)
    n_continuing = len(data) - len(joined)
    if n_odd < n_continuing:
        return joined.translate(_ODD_BYTES), [f"not UTF-8, read as Windows-1252: {n_odd} bytes"]
    with suppress(UnicodeDecodeError):
        text = data.decode("cp1252")
        if _is_western_european(text):
            return text, ["read as Windows-1252"]
    detail = f"byte {first_wrong} is not UTF-8"
    raise Unreadable("unknown encoding", "save it as UTF-8, or convert it with iconv", detail)


def decode_as(data: bytes, encoding: str) -> str:
    r"""Text of bytes in the encoding that they declare, as browsers and mail programs read it.

    Raises:
        LookupError: there is no such encoding.
        UnicodeDecodeError: the bytes are in another encoding.

    Example:
        >>> decode_as("it’s 5 €".encode("cp1252"), "iso-8859-1")
        'it’s 5 €'
    """
    name = codecs.lookup(encoding).name
    # Those of Windows lack five bytes that the others have.
    errors = "replace" if name.startswith("iso8859") else "strict"
    return data.decode(_BROADER.get(name, name), errors)


def _is_western_european(text: str) -> bool:
    letters = "".join(filter(str.isalpha, text))
    n_beyond_ascii = len(letters) - len(letters.encode("ascii", "ignore"))
    if n_beyond_ascii >= _LATIN_SHARE * len(letters) or _NOT_WESTERN.search(text):
        return False
    return len(_MISREAD.findall(text)) <= _MISREAD_SHARE * n_beyond_ascii


def text(source: str) -> Content:
    """Plain text; its title is a heading on top."""
    pieces = list(_paragraphs(with_line_feeds(source)))
    title = ""
    if pieces and pieces[0].kind == "heading":
        title = first_heading(pieces)
    return Content(title, pieces)


def _paragraphs(body: str) -> Iterator[Piece]:
    for group in _EMPTY_LINES.split(body.strip("\n")):
        lines = group.rstrip().split("\n")
        if len(lines) > 1 and _is_underlined(lines[0], lines[1]):
            yield Piece("heading", lines[0], 1 if lines[1].lstrip()[0] in "=*#" else 2)
            lines = lines[2:]
        lines = [line for line in lines if not (line.strip() and _RULE.match(line))]
        if not any(lines):
            continue
        if _ENTRY.match(lines[0]) and len(lines) > 1:
            yield from _entries(lines)
        elif _is_prose(lines):
            yield Piece("paragraph", " ".join(lines))
        else:
            yield Piece("code", "\n".join(lines))


def _is_underlined(line: str, below: str) -> bool:
    size = len(line.strip())
    below = below.strip()
    is_as_long = abs(len(below) - size) <= max(2, size // 4)
    if not 0 < size <= _MAX_HEADING_CHARS or not is_as_long:
        return False
    return _UNDERLINE.match(below) is not None and not _RULE.match(line)


def _entries(lines: Sequence[str]) -> Iterator[Piece]:
    """The entries of a list; a line without a mark goes on with the entry above it."""
    entries: list[list[str]] = []
    for line in lines:
        if _ENTRY.match(line):
            entries.append([])
        entries[-1].append(re.sub(r"^\s*[-*+·]\s+", BULLET, line))
    for entry in entries:
        yield Piece("item", " ".join(entry))


def _is_prose(lines: Sequence[str]) -> bool:
    """Whether its line ends only come from the width of the text: one line, or lines that are all
    full.
    """
    if len(lines) == 1:
        return True
    n_times = sum(_LOG_TIME.match(line) is not None for line in lines)
    has_columns = any("   " in line.strip() for line in lines)
    indents = {len(line) - len(line.lstrip()) for line in lines[1:]}
    if n_times > 1 or has_columns or len(indents) > 1:
        return False
    sizes = [len(line.rstrip()) for line in lines]
    width = max(sizes)
    return width > _MIN_PROSE_CHARS and min(sizes[:-1]) > _MIN_FULL_SHARE * width


def code(source: str) -> Content:
    """Source code: runs of lines up to an empty line and one without indentation."""
    parts = re.split(r"\n[^\S\n]*\n(?=\S)", with_line_feeds(source))
    return Content("", [Piece("code", part) for part in parts])


def with_line_feeds(text: str) -> str:
    """A text whose lines end as those of Unix; a form feed ends a line, too.

    What a program wrote for a terminal alone is left out: colours, links, and letters that are
    printed twice to look bold.
    """
    return re.sub("\r\n?|\f", "\n", _OF_TERMINALS.sub("", text))


def markdown(source: str) -> Content:
    """Markdown; its title is the first heading."""
    rendered = _parser().render(with_line_feeds(source))
    pieces = list(map(_tidied, html.pieces_of(rendered)))
    return Content(first_heading(pieces), pieces)


@lru_cache(maxsize=1)
def _parser() -> Any:
    parser = require("markdown_it", "docs").MarkdownIt("commonmark", {"html": True})
    # A tag within a line may be no HTML at all ("Vec<T>"), and that of a block may never be closed.
    parser.add_render_rule("html_inline", _inline_tag)
    parser.add_render_rule("html_block", _close_block)
    # No target of a link is shown.
    parser.normalizeLink = str
    return parser.enable(["table", "strikethrough"])


def _inline_tag(_: Any, tokens: Any, number: int, *rest: Any) -> str:
    tag = tokens[number].content
    if tag.endswith(("del>", "sup>")):
        return str(tag)
    return " " if tag.startswith("<br") else ""


def _close_block(_: Any, tokens: Any, number: int, *rest: Any) -> str:
    block = tokens[number].content.strip()
    # Markdown may stand between these.
    return block if block in ("<del>", "</del>") else html.close_elements(block)


def _tidied(piece: Piece) -> Piece:
    if piece.kind == "heading":
        return replace(piece, text=_ATTRIBUTES.sub("", piece.text))
    return replace(piece, text=_ALERT.sub(lambda match: f"{match[1].capitalize()}: ", piece.text))
