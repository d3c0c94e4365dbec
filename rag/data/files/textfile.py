"""Plain text and Markdown: one file, one document."""

from __future__ import annotations

import codecs
import re
from pathlib import PurePosixPath

from rag.data.files.base import ReadOptions, Records, Source, open_source
from rag.data.files.streams import STDIN, bad_encoding, strip_compression
from rag.data.records import BadRecord, Document

__all__ = ["read_text_file"]

_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.+?)\s*#*\s*$")


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
