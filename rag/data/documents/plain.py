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
from rag.data.documents.blocks import BULLET, Piece, Unreadable, clean, first_heading
from rag.data.table_text import quoted

_DECLARED = re.compile(rb"""(?:charset|encoding|coding)\s*[=:]\s*["']?\s*([A-Za-z][\w.:-]+)""")
_UNDERLINE = re.compile(r"([=\-~^*#])\1{2,}\s*\Z")
_ENTRY = re.compile(r"\s*([-*+•·–]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+(?=\S)")
_RULE = re.compile(r"[\s=\-_*#~+.]+\Z")
_TIME = re.compile(
    r"\W{0,2}\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\W{0,2}\w{3} [ \d]\d \d\d:\d\d:\d\d"
)  # of a log
_MAX_HEADING_CHARS = 100
_LATIN_SHARE = 0.5  # of letters beyond ASCII: more is no Western European text
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.{0,50000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"[\w.-]+:(\s|\Z)|\s|[#-]|\Z")
_TITLE = re.compile(r"""^title:[ \t]+(["']?)([^\s*&|>{[!].*?)\1[ \t]*$""", re.MULTILINE)
_ALERT = re.compile(r"\A\[!(\w+)\]\s*")  # GitHub's notes: "> [!WARNING]"
_ATTRIBUTES = re.compile(r"\s*\{[#.:][^{}]*\}\s*\Z")  # "# Title {#anchor}"


def decode(data: bytes) -> tuple[str, tuple[str, ...]]:
    r"""Text of bytes, and a note if its encoding had to be guessed.

    A byte-order mark decides, then UTF-8 if it fits, then what the file declares; Western European
    text in Windows-1252 is recognised. Other data are `Unreadable`.

    Example:
        >>> decode("café au lait".encode("cp1252"))
        ('café au lait', ('read as Windows-1252',))
    """
    if (name := json.detect_encoding(data)) in ("utf-8-sig", "utf-16", "utf-32"):  # by its mark
        return data.decode(name, "replace"), ()
    if b"\0" in data:
        raise Unreadable("binary data", "remove it, or give it the name of its real format")
    try:
        return data.decode("utf-8"), ()
    except UnicodeDecodeError as error:
        place = error.start
    if match := _DECLARED.search(data[:1024]):
        with suppress(LookupError, UnicodeDecodeError):
            return data.decode(match[1].decode()), ()
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        text = ""
    letters = [character for character in text if character.isalpha()]
    has_controls = re.search(rb"[\0-\x08]", data) is not None
    if (
        letters
        and not has_controls
        and sum(not c.isascii() for c in letters) < _LATIN_SHARE * len(letters)
    ):
        return text, ("read as Windows-1252",)
    raise Unreadable(
        "unknown encoding",
        "save it as UTF-8, or convert it with iconv",
        f"byte {place + 1} is not UTF-8",
    )


def text(source: str) -> tuple[str, list[Piece]]:
    """Title and pieces of plain text; the title is that of its front matter, else a heading on
    top.
    """
    title, body = front_matter(source)
    pieces = list(_paragraphs(body))
    return title or first_heading(pieces[:1]), pieces


def _paragraphs(body: str) -> Iterator[Piece]:
    for group in re.split(r"\n[ \t]*(?:\n[ \t]*)+", body.strip("\n")):
        lines = [line for line in group.split("\n") if not (line.strip() and _RULE.match(line))]
        marked = group.rstrip().split("\n")
        if len(marked) >= 2 and _is_underlined(marked[0], marked[1]):
            yield Piece("heading", marked[0], 1 if marked[1].lstrip()[0] in "=*#" else 2)
            lines = lines[1:]
        if not any(line.strip() for line in lines):
            continue
        if _ENTRY.match(lines[0]) and len(lines) > 1:
            yield from (Piece("item", " ".join(entry)) for entry in _entries(lines))
        elif _is_prose(lines):
            yield Piece("paragraph", " ".join(lines))
        else:
            yield Piece("code", "\n".join(lines))


def _is_underlined(line: str, below: str) -> bool:
    size = len(line.strip())
    fits = 0 < size <= _MAX_HEADING_CHARS and abs(len(below.strip()) - size) <= max(2, size // 4)
    return fits and _UNDERLINE.match(below.strip()) is not None and not _RULE.match(line)


def _entries(lines: Sequence[str]) -> list[list[str]]:
    """The lines of each entry of a list; one without a mark goes on with the entry above it."""
    entries: list[list[str]] = []
    for line in lines:
        if _ENTRY.match(line):
            entries.append([])
        entries[-1].append(re.sub(r"^\s*[-*+·]\s+", BULLET, line))
    return entries


def _is_prose(lines: Sequence[str]) -> bool:
    """Whether its line ends only come from the width of the text: one line, or lines that are all
    full.
    """
    if len(lines) == 1:
        return True
    if sum(_TIME.match(line) is not None for line in lines) > 1:
        return False
    width = max(len(line.rstrip()) for line in lines)
    is_full = all(len(line.rstrip()) > 0.6 * width for line in lines[:-1])
    aligned = {len(line) - len(line.lstrip()) for line in lines[1:]}
    return (
        is_full
        and width > 40
        and len(aligned) == 1
        and not any("   " in line.strip() for line in lines)
    )


def code(source: str) -> tuple[str, list[Piece]]:
    """Pieces of source code: runs of lines up to an empty line and one without indentation."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return "", [Piece("code", part) for part in re.split(r"\n[^\S\n]*\n(?=\S)", source)]


def front_matter(text: str) -> tuple[str, str]:
    r"""The title that a document's metadata gives, "" if none, and the text below them.

    Only lines such as `title: Guide` are read, so that nothing of YAML's (aliases, nesting) is
    built.

    Example:
        >>> front_matter("---\ntitle: Guide\n---\nBody.")
        ('Guide', 'Body.')
    """
    stated, body = _parted(text)
    titles = [title[2].strip() for title in _TITLE.finditer(stated)]
    return clean(titles[-1]) if titles and titles[-1] not in ("null", "~") else "", body


def _parted(text: str) -> tuple[str, str]:
    """The lines of the front matter, "" if there is none, and the text below it."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    match = _FRONT_MATTER.match(text)
    if match is None or not all(map(_FIELD.match, match[1].split("\n"))):
        return "", text
    return match[1], text[match.end() :]


def stated_fields(text: str) -> dict[str, Any]:
    r"""The fields of a document's front matter but its title: text, numbers, truth values, and
    lists of these.

    Dates stay as they are written. What is nested deeper is left out, so that nothing of YAML's
    (aliases, tags) is built.

    Raises:
        ValueError: the front matter is no YAML.

    Example:
        >>> stated_fields("---\ntitle: Guide\nyear: 2024\non: 2024-05-01\ntags: [a, b]\n---\nBody.")
        {'year': 2024, 'on': '2024-05-01', 'tags': ['a', 'b']}
    """
    try:
        root = yaml.compose(_parted(text)[0], Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError("the front matter is no YAML") from error
    fields = dict[str, Any]()
    for name, node in root.value if isinstance(root, yaml.MappingNode) else ():
        is_list = isinstance(node, yaml.SequenceNode)
        scalars = node.value if is_list else [node]
        if name.value != "title" and all(isinstance(it, yaml.ScalarNode) for it in scalars):
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


def markdown(text: str) -> tuple[str, list[Piece], tuple[str, ...]]:
    """Title, pieces and notes; the title is that of the front matter, else the first heading.

    The other fields of the front matter are the first row, which is searched and read as a table's.
    """
    title, body = front_matter(text)
    pieces = [_tidied(piece) for piece in html.pieces_of(_parser().render(body))]
    title = title or first_heading(pieces)
    try:
        fields = stated_fields(text)
    except ValueError as error:
        return title, pieces, (f"{error}: its fields are not read",)
    if fields:
        pieces.insert(0, Piece("row", "; ".join(map(_cell, fields, fields.values()))))
    return title, pieces, ()


def _cell(name: str, value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    shown = [it if isinstance(it, str) else json.dumps(it) for it in values]
    return f"{quoted(name)}: {quoted(', '.join(shown))}"


@lru_cache(maxsize=1)
def _parser() -> Any:
    parser = require("markdown_it", "docs").MarkdownIt("commonmark", {"html": True})
    # A tag within a line may be no HTML at all ("Vec<T>"), and one of a block may never be closed.
    parser.add_render_rule(
        "html_inline",
        lambda _, tokens, at, *rest: " " if tokens[at].content.startswith("<br") else "",
    )
    parser.add_render_rule(
        "html_block", lambda _, tokens, at, *rest: html.close_elements(tokens[at].content)
    )
    parser.normalizeLink = str  # no target of a link is shown
    return parser.enable(["table", "strikethrough"])


def _tidied(piece: Piece) -> Piece:
    if piece.kind == "heading":
        return replace(piece, text=_ATTRIBUTES.sub("", piece.text))
    return replace(piece, text=_ALERT.sub(lambda match: f"{match[1].capitalize()}: ", piece.text))
