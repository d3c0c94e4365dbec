"""Text files, whatever their encoding: plain text, source code, Markdown."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import yaml

from rag.core.optional import require
from rag.data.documents import html
from rag.data.documents.blocks import BULLET, Content, Piece, Unreadable, clean, first_heading
from rag.data.metadata import GROUPS_FIELD
from rag.data.table_text import quoted

UNREADABLE_RIGHTS = ("unreadable rights", "name who may read it as groups: [staff, board]")

_BYTE_ORDER_MARKED = ("utf-8-sig", "utf-16", "utf-32")
_DECLARED = re.compile(rb"""(?:charset|encoding|coding)\s*[=:]\s*["']?\s*([A-Za-z][\w.:-]+)""")
# Of letters beyond ASCII: more is no Western European text.
_LATIN_SHARE = 0.5

_EMPTY_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_UNDERLINE = re.compile(r"([=\-~^*#])\1{2,}\s*\Z")
_ENTRY = re.compile(r"\s*([-*+•·–]|\(?\d{1,3}[.)]|\(?[a-z][.)]|§ ?\d{1,3}[a-z]?)\s+(?=\S)")
_RULE = re.compile(r"[\s=\-_*#~+.]+\Z")
_LOG_TIME = re.compile(r"\W{0,2}\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\W{0,2}\w{3} [ \d]\d \d\d:\d\d:\d\d")
_MAX_HEADING_CHARS = 100
# In a paragraph of several lines the longest is longer, and all but the last have this share of it.
_MIN_PROSE_CHARS = 40
_MIN_FULL_SHARE = 0.6

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.{0,50000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"[\w.-]+:(\s|\Z)|\s|[#-]|\Z")
_TITLE = re.compile(r"""^title:[ \t]+(["']?)([^\s*&|>{[!].*?)\1[ \t]*$""", re.MULTILINE)
_GROUPS = re.compile(rf"""^["']?{GROUPS_FIELD}["']?\s*:""", re.MULTILINE)
# GitHub's notes: "> [!WARNING]".
_ALERT = re.compile(r"\A\[!(\w+)\]\s*")
# "# Title {#anchor}".
_ATTRIBUTES = re.compile(r"\s*\{[#.:][^{}]*\}\s*\Z")


def decode(data: bytes) -> tuple[str, list[str]]:
    r"""Text of bytes, and a note if its encoding had to be guessed.

    A byte-order mark decides, then UTF-8 if it fits, then what the file declares; Western European
    text in Windows-1252 is recognised.

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
            return data.decode(declared[1].decode()), []
    with suppress(UnicodeDecodeError):
        text = data.decode("cp1252")
        if _is_western_european(text):
            return text, ["read as Windows-1252"]
    detail = f"byte {first_wrong} is not UTF-8"
    raise Unreadable("unknown encoding", "save it as UTF-8, or convert it with iconv", detail)


def _is_western_european(text: str) -> bool:
    letters = "".join(filter(str.isalpha, text))
    n_beyond_ascii = len(letters) - len(letters.encode("ascii", "ignore"))
    return n_beyond_ascii < _LATIN_SHARE * len(letters) and not re.search(r"[\0-\x08]", text)


def text(source: str) -> Content:
    """Plain text; its title is that of its front matter, else a heading on top.

    The other fields of the front matter are read as those of Markdown.
    """
    front_matter, body = _front_matter(source)
    pieces = list(_paragraphs(body))
    return _with_fields(front_matter, pieces, first_heading(pieces[:1]))


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
    parts = re.split(r"\n[^\S\n]*\n(?=\S)", _with_line_feeds(source))
    return Content("", [Piece("code", part) for part in parts])


def _with_line_feeds(text: str) -> str:
    # A form feed ends a line, too.
    return re.sub("\r\n?|\f", "\n", text)


def markdown(source: str) -> Content:
    """Markdown; its title is that of the front matter, else the first heading.

    The other fields of the front matter are the first row, which is searched and read as a table's.
    """
    front_matter, body = _front_matter(source)
    pieces = [_tidied(piece) for piece in html.pieces_of(_parser().render(body))]
    return _with_fields(front_matter, pieces, first_heading(pieces))


def _with_fields(front_matter: str, pieces: list[Piece], heading: str) -> Content:
    title = _title(front_matter) or heading
    try:
        fields = stated_fields(front_matter)
    except yaml.YAMLError as error:
        if _GROUPS.search(front_matter):
            raise Unreadable(*UNREADABLE_RIGHTS, "its front matter is no YAML") from error
        return Content(title, pieces, ["the front matter is no YAML: its fields are not read"])
    names = [name for name in fields if name != GROUPS_FIELD]
    if names:
        row = "; ".join(f"{quoted(name)}: {_quoted_value(fields[name])}" for name in names)
        pieces.insert(0, Piece("row", row))
    return Content(title, pieces, fields=fields)


def _front_matter(text: str) -> tuple[str, str]:
    """The lines of a document's metadata, "" if there are none, and the text below them."""
    text = _with_line_feeds(text)
    match = _FRONT_MATTER.match(text)
    if match is None:
        return "", text
    has_fields_alone = all(map(_FIELD.match, match[1].split("\n")))
    # Who states groups means front matter, whatever else is in it.
    if not has_fields_alone and not _GROUPS.search(match[1]):
        return "", text
    return match[1], text[match.end() :]


def _title(front_matter: str) -> str:
    """The title that lines of metadata state, even if they are no YAML; "" if none."""
    titles = [match[2].strip() for match in _TITLE.finditer(front_matter)]
    return clean(titles[-1]) if titles and titles[-1] not in ("null", "~") else ""


def stated_fields(front_matter: str) -> dict[str, object]:
    r"""The fields of a document's front matter but its title: text, numbers, truth values, and
    lists of these.

    Dates stay as they are written. What is nested deeper is left out, so that nothing of YAML's
    (aliases, tags) is built.

    Raises:
        yaml.YAMLError: the front matter is no YAML.

    Example:
        >>> stated_fields("title: Guide\nyear: 2024\non: 2024-05-01\ntags: [a, b]")
        {'year': 2024, 'on': '2024-05-01', 'tags': ['a', 'b']}
    """
    root = yaml.compose(front_matter, Loader=yaml.SafeLoader)
    fields: dict[str, Any] = {}
    for name, node in root.value if isinstance(root, yaml.MappingNode) else ():
        is_list = isinstance(node, yaml.SequenceNode)
        scalars = node.value if is_list else [node]
        is_nested = not all(isinstance(scalar, yaml.ScalarNode) for scalar in scalars)
        if is_nested and name.value == GROUPS_FIELD:
            raise yaml.YAMLError("groups are a list of names")
        if is_nested or name.value == "title":
            continue
        values = [value for value in map(_typed, scalars) if value not in (None, "")]
        if values:
            fields[clean(name.value)] = values if is_list else values[0]
    return fields


def _typed(node: yaml.ScalarNode) -> Any:
    """The value of a scalar: what YAML and JSON both call a number or a truth value, else text."""
    if node.tag.endswith(":null"):
        return None
    if node.tag.endswith((":int", ":float", ":bool")):
        with suppress(ValueError):
            return json.loads(node.value.lower())
    return clean(node.value)


def _quoted_value(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    texts = [item if isinstance(item, str) else json.dumps(item) for item in values]
    return quoted(", ".join(texts))


@lru_cache(maxsize=1)
def _parser() -> Any:
    parser = require("markdown_it", "docs").MarkdownIt("commonmark", {"html": True})
    # A tag within a line may be no HTML at all ("Vec<T>"), and that of a block may never be closed.
    parser.add_render_rule("html_inline", _break_line)
    parser.add_render_rule("html_block", _close_block)
    # No target of a link is shown.
    parser.normalizeLink = str
    return parser.enable(["table", "strikethrough"])


def _break_line(_: Any, tokens: Any, number: int, *rest: Any) -> str:
    return " " if tokens[number].content.startswith("<br") else ""


def _close_block(_: Any, tokens: Any, number: int, *rest: Any) -> str:
    return html.close_elements(tokens[number].content)


def _tidied(piece: Piece) -> Piece:
    if piece.kind == "heading":
        return replace(piece, text=_ATTRIBUTES.sub("", piece.text))
    return replace(piece, text=_ALERT.sub(lambda match: f"{match[1].capitalize()}: ", piece.text))
