"""Markdown (CommonMark with tables), with front matter; notebooks of Jupyter, whose prose is Markdown."""

import json
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import yaml

from rag.core.optional import require
from rag.data.documents import html
from rag.data.documents.blocks import Piece, Unreadable, clean, first_heading
from rag.data.documents.limits import check_nesting

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.{0,50000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_ALERT = re.compile(r"\A\[!(\w+)\]\s*")  # GitHub's notes: "> [!WARNING]"
_ATTRIBUTES = re.compile(r"\s*\{[#.:][^{}]*\}\s*\Z")  # "# Title {#anchor}"


def front_matter(text: str) -> tuple[str, str]:
    r"""The title that a document's metadata gives, "" if none, and the text below them.

    Only YAML's nodes are read: nothing is built of them, so that no alias is expanded.

    Example:
        >>> front_matter("---\ntitle: Guide\n---\nBody.")
        ('Guide', 'Body.')
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    match = _FRONT_MATTER.match(text)
    if match is None:
        return "", text
    try:
        check_nesting(match[1], "[{", 100)
        node = yaml.compose(match[1], Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, Unreadable):
        return "", text
    if not isinstance(node, yaml.MappingNode) or not all(isinstance(key.value, str) for key, _ in node.value):
        return "", text
    values = [value for key, value in node.value if key.value == "title"]
    title = clean(values[-1].value) if values and isinstance(values[-1], yaml.ScalarNode) else ""
    return "" if title in ("null", "~") else title, text[match.end() :]


def markdown(text: str) -> tuple[str, list[Piece]]:
    """Title and pieces; the title is that of the front matter, else the first heading."""
    title, body = front_matter(text)
    check_nesting(body, "[", 1000)
    pieces = [_tidied(piece) for piece in html.rendered(_parser().render(body))]
    return title or first_heading(pieces), pieces


@lru_cache(maxsize=1)
def _parser() -> Any:
    parser = require("markdown_it", "docs").MarkdownIt("commonmark", {"html": True})
    # A tag within a line may be no HTML at all ("Vec<T>"), and one of a block may never be closed.
    parser.add_render_rule(
        "html_inline", lambda _, tokens, at, *rest: " " if tokens[at].content.startswith("<br") else ""
    )
    parser.add_render_rule("html_block", lambda _, tokens, at, *rest: html.closed(tokens[at].content))
    parser.normalizeLink = str  # no target of a link is shown
    return parser.enable(["table", "strikethrough"])


def _tidied(piece: Piece) -> Piece:
    if piece.kind == "heading":
        return replace(piece, text=_ATTRIBUTES.sub("", piece.text))
    return replace(piece, text=_ALERT.sub(lambda match: f"{match[1].capitalize()}: ", piece.text))


def notebook(text: str) -> tuple[str, list[Piece]]:
    """Title and pieces of a Jupyter notebook: its prose and its code, without results."""
    try:
        cells = json.loads(text)["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        detail = "not valid JSON" if isinstance(error, ValueError) else "no cells of a notebook in it"
        raise Unreadable("broken file", "save the notebook again", detail) from error
    title, pieces = "", list[Piece]()
    for kind, source in sources:
        if kind == "markdown":
            named, found = markdown(source)
            title = title or named
            pieces += found
        elif kind == "code":
            pieces.append(Piece("code", source))
    return title, pieces
