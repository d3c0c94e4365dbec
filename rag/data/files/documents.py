"""Read documents of every corpus format: rows of a file, which `DocumentFields` turns into documents."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rag.data.files.fields import DocumentFields
from rag.data.files.named import named_documents
from rag.data.files.question_sets import squad_paragraphs
from rag.data.files.rows import Rows, head_of, open_binary, parquet_rows, read_rows
from rag.data.files.sources import ReadOptions, Source, sniff
from rag.data.records import BadRecord, Document, ReadReport


def documents_of(
    source: Source, options: ReadOptions, report: ReadReport
) -> Iterator[tuple[int, Document | BadRecord]]:
    """The documents of a source, each with the number of its line or record.

    Args:
        report: records which fields the documents were made of.

    Raises:
        DataError: it is damaged, or of another shape as a whole.
        ConfigError: standard input of a format that cannot be told.
    """
    is_file = source.format not in ("parquet", "hf", "irds")
    opened: AbstractContextManager[Any] = open_binary(source.path) if is_file else nullcontext()
    fields = DocumentFields(options, source.name)
    with opened as stream:
        for number, row in _rows_of(stream, source, options, fields):
            if isinstance(row, Document | BadRecord):
                yield number, row
            elif (paragraphs := squad_paragraphs(row)) is not None:
                for paragraph in paragraphs:
                    missing = BadRecord("missing field", f"the paragraph {paragraph.id!r} has no context")
                    text = paragraph.text
                    yield number, missing if text is None else Document(paragraph.id, paragraph.title, text)
            else:
                yield number, fields.document(row, number)
    fields.check()
    if fields.layout:
        report.layouts[fields.layout] += 1


def _rows_of(stream: Any, source: Source, options: ReadOptions, fields: DocumentFields) -> Rows:
    format = source.format
    if format == "parquet":  # columns that no document needs are not read
        return parquet_rows(source.path, fields.choose)
    if format in ("hf", "irds"):
        return named_documents(source.path)
    if format == "auto":  # of standard input nothing is known before
        format = sniff(head_of(stream), "standard input")
    return read_rows(stream, format, source.path, fields.columns, options.encoding)
