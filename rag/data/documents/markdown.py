"""Markdown (CommonMark with tables), with front matter; notebooks of Jupyter, whose prose is Markdown."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from rag.core.optional import require
from rag.data.documents import html, tables
from rag.data.documents.blocks import BULLET, Kind, Piece, Unreadable, clean, first_heading

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_ALERT = re.compile(r"\A\[!(\w+)\]\s*")  # GitHub's notes: "> [!WARNING]"
_ATTRIBUTES = re.compile(r"\s*\{[#.:][^{}]*\}\s*\Z")  # "# Title {#anchor}"


def front_matter(text: str) -> tuple[str, str]:
    r"""The title that a document's metadata gives, "" if none, and the text below them.

    Example:
        >>> front_matter("---\ntitle: Guide\n---\nBody.")
        ('Guide', 'Body.')
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    match = _FRONT_MATTER.match(text)
    if match is None:
        return "", text
    try:
        fields = yaml.load(match[1], Loader=yaml.BaseLoader)  # strings only: no date is refused
    except yaml.YAMLError:
        return "", text
    if not isinstance(fields, dict):
        return "", text
    title = clean(str(fields.get("title") or ""))
    return "" if title in ("null", "~") else title, text[match.end() :]


def markdown(text: str) -> tuple[str, list[Piece]]:
    """Title and pieces; the title is that of the front matter, else the first heading."""
    title, body = front_matter(text)
    module = require("markdown_it", "docs")
    tokens = module.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body)
    pieces = list(_Blocks(tokens).pieces())
    return title or first_heading(pieces), pieces


class _Blocks:
    """Walks over the tokens of one document."""

    def __init__(self, tokens: Sequence[Any]) -> None:
        self._tokens = tokens
        self._lists: list[int] = []  # of each open list the next number, 0 for bullets
        self._mark = ""

    def pieces(self) -> Iterator[Piece]:
        heading, is_header = 0, False
        header: list[str] = []
        row: list[str] | None = None
        body: list[list[str]] = []
        for token in self._tokens:
            match token.type:
                case "heading_open":
                    heading = int(token.tag[1])
                case "heading_close":
                    heading = 0
                case "inline" if row is not None:
                    row.append(_text(token))
                case "inline" if heading:
                    yield Piece("heading", _ATTRIBUTES.sub("", _text(token)), heading)
                case "inline":
                    if text := _ALERT.sub(lambda match: f"{match[1].capitalize()}: ", _text(token)):
                        yield self._block(text)
                case "fence" | "code_block":
                    yield Piece("code", token.content)
                case "html_block":
                    yield from html.fragment(token.content)
                case "bullet_list_open":
                    self._lists.append(0)
                case "ordered_list_open":
                    self._lists.append(int(token.attrs.get("start", 1)))
                case "bullet_list_close" | "ordered_list_close":
                    self._lists.pop()
                case "list_item_open":
                    self._begin_item()
                case "thead_open":
                    is_header = True
                case "thead_close":
                    is_header = False
                case "tr_open":
                    row = []
                case "tr_close":
                    if is_header:
                        header = row or []
                    else:
                        body.append(row or [])
                    row = None
                case "table_close":
                    yield from tables.rows(body, header)
                    header, body = [], []

    def _begin_item(self) -> None:
        number = self._lists[-1]
        self._mark = f"{number}. " if number else BULLET
        if number:
            self._lists[-1] += 1

    def _block(self, text: str) -> Piece:
        kind: Kind = "item" if self._lists else "paragraph"
        mark, self._mark = self._mark, ""
        return Piece(kind, mark + text)


def _text(token: Any) -> str:
    """Inline text without marks, link targets, pictures and tags."""
    parts = []
    for child in token.children or ():
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak") or child.content.startswith("<br"):
            parts.append(" ")
    return clean("".join(parts))


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
