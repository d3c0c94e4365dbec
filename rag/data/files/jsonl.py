"""JSON lines: the general form, and HotpotQA's, in which the text is a list of sentences."""

from __future__ import annotations

import io

from rag.data.files.base import ReadOptions, Records, Source, open_source
from rag.data.files.fields import DocumentFields
from rag.data.files.json_stream import parse_json
from rag.data.files.streams import read_lines
from rag.data.records import BadRecord

__all__ = ["read_hotpot", "read_json_lines", "read_jsonl"]


def read_jsonl(source: Source, options: ReadOptions) -> Records:
    """One object a line."""
    with open_source(source) as stream:
        yield from read_json_lines(stream, source, options)


def read_hotpot(source: Source, options: ReadOptions) -> Records:
    """HotpotQA's abstracts: one object a line whose text is a list of sentences."""
    with open_source(source) as stream:
        yield from read_json_lines(stream, source, options, text_lists_are_sentences=True)


def read_json_lines(
    stream: io.BufferedReader, source: Source, options: ReadOptions, *, text_lists_are_sentences: bool = False
) -> Records:
    """Read objects from an open stream; blank lines are no records."""
    fields = DocumentFields(options, source.name, text_lists_are_sentences=text_lists_are_sentences)
    for number, line in read_lines(stream, encoding=options.encoding):
        if isinstance(line, BadRecord):
            yield number, line
        elif line and not line.isspace():
            try:
                record = parse_json(line)
            except ValueError as error:
                yield number, BadRecord("malformed JSON", str(error))
                continue
            yield number, fields.document(record, number)
