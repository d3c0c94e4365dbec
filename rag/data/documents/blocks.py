"""The result of every converter: blocks of a document, each of them a span of one clean text."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag.core.errors import DataError
from rag.core.types import Metadata
from rag.data.records import Block, Document, Kind

MAX_CHARS = 20_000_000
"""Limit of a document's text."""

BULLET = "• "
"""Begins an entry of a list without numbers."""

PAGE_BREAK = "\f"
"""In the text of a piece: its next page begins here."""

# Kinds whose blocks follow each other line by line.
_LINES = ("item", "row")
# Characters without a shape: controls, zero-width marks, soft hyphens, halves of surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff\ufffe\ud800-\udfff]"
)
# Titles that programs give to files without any (reportlab's are in parentheses), such as the name of
# another file.
_GENERATED_TITLE = re.compile(
    r"\W*(?:anonymous|unspecified|(?:new )?(?:document|page)|"
    r"untitled(?:[ -](?:document|presentation|spreadsheet))?(?: ?\d+)?|"
    r"(?:document|dokument|presentation|präsentation|book|mappe)\d+|word document|"
    r"powerpoint[ -](?:presentation|präsentation)|slide 1|microsoft (?:word|powerpoint|excel)(?: - .*)?|"
    r".*\.(?:docx?|rtf|tex|dvi|indd|qxd|ps|pdf|fm|html?))\W*",
    re.IGNORECASE,
)
# What the first section of a document is called, and never the document.
_FIRST_SECTION = re.compile(
    r"[01][.)]? |(?:introduction|overview|preface|foreword|abstract|summary)\W*\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A block as a converter reads it, before its text is cleaned.

    Attributes:
        kind: "row" is one row of a table and "item" one entry of a list; the text of "code" keeps
            its lines.
        level: level of a heading, 1 for the outermost.
        pages: labels of the pages that it stands on; each after the first begins at a `PAGE_BREAK`
            in `text`.
    """

    kind: Kind
    text: str
    level: int = 0
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """What a converter reads of a file.

    Attributes:
        title: the title that the file states, otherwise its first heading where headings tell what
            a file is about; "" without one.
        notes: remarks for the user, such as what the converter does not read.
        fields: the front matter of a file, except its title.
        scanned: the labels of those pages whose text was recognised in a picture.
    """

    title: str
    pieces: Sequence[Piece]
    notes: Sequence[str] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    scanned: Sequence[str] = ()


class Unreadable(DataError):
    """A file that cannot be converted.

    Args:
        reason: why, in one of a few fixed phrases.
        remedy: what the owner of the file can do.
    """

    def __init__(self, reason: str, remedy: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason, hint=remedy)
        self.reason = reason
        self.remedy = remedy
        self.detail = detail


def assemble(
    title: str, pieces: Iterable[Piece], notes: Iterable[str] = (), metadata: Metadata = ()
) -> Document:
    r"""Clean the pieces and join them into one text.

    Each row of a table and each entry of a list is one line; other blocks are separated by an empty
    line.

    Raises:
        Unreadable: there is no text in the pieces.

    Example:
        >>> assemble("T", [Piece("heading", "One", 1), Piece("item", "• a"), Piece("item", "• b\n c")]).text
        'One\n\n• a\n• b c'
    """
    parts: list[str] = []
    blocks: list[Block] = []
    pages: list[tuple[int, str]] = []
    last_page = ""
    start = 0
    for piece in pieces:
        text = clean_lines(piece.text) if piece.kind == "code" else clean(piece.text)
        if not text:
            continue
        if blocks:
            is_next_line = piece.kind in _LINES and piece.kind == blocks[-1].kind
            separator = "\n" if is_next_line else "\n\n"
            parts.append(separator)
            start += len(separator)
        parts.append(text)
        blocks.append(Block(piece.kind, start, start + len(text), piece.level))
        page_starts = [0, *_after_breaks(piece.text, text)]
        for page_start, page in zip(page_starts, piece.pages or ("",), strict=False):
            if page != last_page:
                pages.append((start + page_start, page))
                last_page = page
        start += len(text)
    if not blocks:
        raise Unreadable("empty", "nothing to do: there is no text in it")
    return Document(
        "",
        clean(title),
        "".join(parts),
        tuple(blocks),
        tuple(pages),
        metadata=metadata,
        notes=tuple(notes),
    )


def _after_breaks(text: str, cleaned: str) -> Iterator[int]:
    """Where the pages after each `PAGE_BREAK` of a piece's text begin in the cleaned text."""
    for match in re.finditer(PAGE_BREAK, text):
        before = len(clean(text[: match.start()]))
        yield before + (cleaned[before : before + 1] == " ")


def first_heading(pieces: Iterable[Piece]) -> str:
    """The text of the first heading, as a title; "" if there is none, or if it names the first of
    several sections ("1. Overview") and nothing above them, or if a program made it up.
    """
    headings = [piece for piece in pieces if piece.kind == "heading"]
    if not headings:
        return ""
    first = headings[0]
    n_sections = sum(heading.level <= first.level for heading in headings)
    if n_sections > 1 and _FIRST_SECTION.match(first.text):
        return ""
    return stated_title(first.text)


def not_read(counts: Mapping[str, int]) -> list[str]:
    """A note about what a file holds beside its text and no converter reads.

    Example:
        >>> not_read({"comments": 2, "alt texts": 0})
        ['not read: comments: 2']
    """
    parts = [f"{what}: {count:,}" for what, count in counts.items() if count]
    return [f"not read: {', '.join(parts)}"] if parts else []


def stated_title(title: str) -> str:
    """The title that a file states; "" where a program made it up.

    Example:
        >>> [stated_title(title) for title in ("(anonymous)", "Document1", "Untitled Goose Game")]
        ['', '', 'Untitled Goose Game']
    """
    title = clean(title)
    return "" if _GENERATED_TITLE.fullmatch(title) else title


def clean(text: str) -> str:
    """One line of text: composed characters, single spaces, nothing invisible."""
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", text)).split())


def clean_lines(text: str) -> str:
    """Lines of code: their common indentation, trailing spaces and outer empty lines removed."""
    text = "\n".join(unicodedata.normalize("NFC", text).splitlines())
    text = _INVISIBLE.sub("", text).expandtabs(4)
    lines = textwrap.dedent(text).split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")
