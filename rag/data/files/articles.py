"""Articles as text: WikiExtractor's output (lines of JSON, or `<doc …>` blocks), plain text, Markdown."""

from __future__ import annotations

import codecs
import html
import io
import re
from pathlib import PurePosixPath

from rag.data.files.base import ReadOptions, Records, Source, open_source
from rag.data.files.json_file import read_json_lines
from rag.data.files.json_stream import first_mark
from rag.data.files.streams import STDIN, bad_encoding, read_lines, strip_compression
from rag.data.records import BadRecord, Document

__all__ = ["read_text_file", "read_wikiextractor"]

_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.+?)\s*#*\s*$")
_ID = re.compile(r'\bid="([^"]*)"')
_TITLE = re.compile(r'\btitle="(.*)"')  # greedy: old versions leave quotes in titles as they are


def read_wikiextractor(source: Source, options: ReadOptions) -> Records:
    """Either form, told apart by the first character."""
    with open_source(source) as stream:
        if first_mark(stream) == "{":
            yield from read_json_lines(stream, source, options)
        else:
            yield from _read_blocks(stream, options)


def _read_blocks(stream: io.BufferedReader, options: ReadOptions) -> Records:
    start = 0  # line of the open block; 0 outside of blocks
    head = ""
    lines: list[str] = []
    problem: BadRecord | None = None
    for number, line in read_lines(stream, encoding=options.encoding):
        if isinstance(line, BadRecord):
            if start:
                problem = problem or line
            else:
                yield number, line
        elif line.startswith("<doc ") and line.rstrip().endswith(">"):
            if start:
                yield start, BadRecord("malformed block", "<doc> without </doc>")
            start, head, lines, problem = number, line, [], None
        elif line.strip() == "</doc>":
            if start:
                yield start, problem or _document(head, lines)
            else:
                yield number, BadRecord("malformed block", "</doc> without <doc>")
            start = 0
        elif start:
            lines.append(line)
        elif line.strip():
            yield number, BadRecord("malformed block", "text outside <doc> … </doc>")
    if start:
        yield start, BadRecord("malformed block", "<doc> without </doc> at the end: truncated")


def _document(head: str, lines: list[str]) -> Document | BadRecord:
    id_match, title_match = _ID.search(head), _TITLE.search(head)
    if id_match is None:
        return BadRecord("missing field", "no id in <doc …>")
    title = html.unescape(title_match.group(1)) if title_match else ""
    if lines and html.unescape(lines[0]).strip() == title:
        lines = lines[1:]
    return Document(id_match.group(1), title, html.unescape("\n".join(lines)).strip())


def read_text_file(source: Source, options: ReadOptions) -> Records:
    """The id is the source's name; the title is the first Markdown heading, else the file's name.

    A heading that opens the file is taken out of the text.
    """
    limit_bytes = 4 * options.max_document_chars + 4
    with open_source(source) as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        yield 1, BadRecord("document too long", f"more than {limit_bytes:,} bytes")
        return
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode(options.encoding)
    except UnicodeDecodeError as error:
        yield 1, bad_encoding(options.encoding, error)
        return
    path = PurePosixPath(strip_compression(source.name))
    title = "" if source.path == STDIN else path.stem
    text = text.replace("\r\n", "\n").strip()
    lines = text.split("\n")
    for index, line in enumerate(lines if path.suffix.lower() in (".md", ".markdown") else []):
        heading = _HEADING.match(line)
        if heading:
            title = heading.group(1)
            if index == 0:
                text = "\n".join(lines[1:]).strip()
            break
    yield 1, Document(source.name, title, text)
