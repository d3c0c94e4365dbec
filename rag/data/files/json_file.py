"""Documents of JSON files: lines, a list of records, SQuAD's articles, or an object from id to record."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from rag.core.errors import DataError
from rag.data.files.base import ReadOptions, Records, Source, open_source
from rag.data.files.fields import DocumentFields
from rag.data.files.json_stream import first_mark, iter_json_array, json_lines, load_json
from rag.data.records import BadRecord, Document

__all__ = [
    "read_json_documents",
    "read_json_lines",
    "read_jsonl",
    "squad_paragraph_id",
    "squad_title",
]


def squad_paragraph_id(title: str, paragraph_index: int) -> str:
    """Id of a SQuAD paragraph: its article's title and its 0-based number in it.

    Example:
        >>> squad_paragraph_id("Nikola_Tesla", 3)
        'Nikola_Tesla-3'
    """
    return f"{title}-{paragraph_index}"


def squad_title(title: str) -> str:
    """The title of a SQuAD article as text: without underscores and percent codes.

    Example:
        >>> squad_title("Beyonc%C3%A9_Knowles")
        'Beyoncé Knowles'
    """
    return unquote(title).replace("_", " ")


def read_jsonl(source: Source, options: ReadOptions, *, text_lists_are_sentences: bool = False) -> Records:
    """One object a line; the text of HotpotQA's abstracts is a list of sentences."""
    with open_source(source) as stream:
        yield from read_json_lines(stream, source, options, text_lists_are_sentences=text_lists_are_sentences)


def read_json_lines(
    stream: io.BufferedReader, source: Source, options: ReadOptions, *, text_lists_are_sentences: bool = False
) -> Records:
    """Read objects from an open stream; blank lines are no records."""
    fields = DocumentFields(options, source.name, text_lists_are_sentences=text_lists_are_sentences)
    for number, record in json_lines(stream, encoding=options.encoding):
        yield number, record if isinstance(record, BadRecord) else fields.document(record, number)


def read_json_documents(source: Source, options: ReadOptions) -> Records:
    """A list is streamed; an object is read whole (at most 2 Gi characters).

    Raises:
        DataError: malformed or truncated JSON, or an object of an unknown shape.
    """
    fields = DocumentFields(options, source.name)
    with open_source(source) as stream:
        if first_mark(stream) == "[":
            for number, record in iter_json_array(stream, source.path, encoding=options.encoding):
                yield number, fields.document(record, number)
            return
        value = load_json(stream, source.path, encoding=options.encoding)
    if isinstance(value, dict) and isinstance(articles := value.get("data"), list):
        yield from _read_squad(articles, options)
    elif isinstance(value, dict) and value and all(isinstance(item, dict | list) for item in value.values()):
        for number, (key, item) in enumerate(value.items(), start=1):
            yield number, _keyed(key, item, options, number, source.name)
    elif isinstance(value, dict):
        yield 1, fields.document(value, 1)
    else:
        raise DataError(
            f"{source.path}: expected a list of records, SQuAD's articles, or an object from id to record"
        )


def _keyed(key: str, item: Any, options: ReadOptions, number: int, name: str) -> Document | BadRecord:
    """MDR's `wiki_id2doc.json`: id → [title, text] or id → {title, text}."""
    if isinstance(item, list):
        if len(item) < 2 or not all(isinstance(part, str) for part in item[:2]):
            return BadRecord("malformed record", "expected [title, text]")
        return Document(key, item[0], item[1])
    document = DocumentFields(options, name).document(item, number)
    return document if isinstance(document, BadRecord) else replace(document, id=key)


def _read_squad(articles: list[Any], options: ReadOptions) -> Records:
    number = 0
    for article in articles:
        if not (isinstance(article, Mapping) and isinstance(paragraphs := article.get("paragraphs"), list)):
            number += 1
            yield number, BadRecord("malformed record", "expected {title, paragraphs}")
            continue
        raw_title = str(article.get("title", ""))
        title = squad_title(raw_title)
        contexts = [item.get("context") if isinstance(item, Mapping) else None for item in paragraphs]
        if options.squad_unit == "article":
            number += 1
            if all(isinstance(context, str) for context in contexts):
                yield number, Document(raw_title, title, "\n".join(contexts))  # type: ignore[arg-type]
            else:
                yield number, BadRecord("missing field", f"a paragraph of {raw_title!r} has no context")
            continue
        for index, context in enumerate(contexts):
            number += 1
            if isinstance(context, str):
                yield number, Document(squad_paragraph_id(raw_title, index), title, context)
            else:
                yield number, BadRecord("missing field", f"paragraph {index} of {raw_title!r} has no context")
