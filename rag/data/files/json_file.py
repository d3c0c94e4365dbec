"""JSON files: a list of records, SQuAD's articles, or an object from id to record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag.core.errors import DataError
from rag.data.files.base import ReadOptions, Records, Source, open_source
from rag.data.files.fields import DocumentFields
from rag.data.files.json_stream import iter_json_array, load_json
from rag.data.records import BadRecord, Document

__all__ = ["first_mark", "read_json_documents", "squad_paragraph_id"]


def squad_paragraph_id(title: str, paragraph_index: int) -> str:
    """Id of a SQuAD paragraph: its article's title and its 0-based number in it.

    Example:
        >>> squad_paragraph_id("Nikola_Tesla", 3)
        'Nikola_Tesla-3'
    """
    return f"{title}-{paragraph_index}"


def first_mark(stream: Any) -> str:
    """The first visible character of a buffered binary stream, which stays unread.

    Only what is buffered is looked at, which is enough for any file not made to deceive.
    """
    head: bytes = stream.peek(4096)[:4096]
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1].decode("latin-1")


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
    return (
        document
        if isinstance(document, BadRecord)
        else Document(key, document.title, document.text, document.sentences)
    )


def _read_squad(articles: list[Any], options: ReadOptions) -> Records:
    number = 0
    for article in articles:
        if not (isinstance(article, Mapping) and isinstance(paragraphs := article.get("paragraphs"), list)):
            number += 1
            yield number, BadRecord("malformed record", "expected {title, paragraphs}")
            continue
        raw_title = str(article.get("title", ""))
        title = raw_title.replace("_", " ")
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
