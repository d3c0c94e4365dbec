"""Corpora: documents from every format, checked one by one and counted."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, as_unicode
from rag.data.documents.read import convert_files, file_id
from rag.data.files.fields import DocumentFields, NoTextError
from rag.data.files.named import is_named, named_documents
from rag.data.files.rows import read_rows
from rag.data.files.sources import Source, find_sources
from rag.data.formats import DOCUMENTS
from rag.data.metadata import METADATA_HINT, metadata_of_fields
from rag.data.records import (
    MAX_RECORDS,
    BadRecord,
    CorpusOptions,
    Document,
    ReadReport,
    first_lines,
    rows_of,
)

# A longer input is almost always the wrong file.
_MAX_CHARS = 4_000_000
_log = get_logger(__name__)


def read_documents(
    inputs: Sequence[str | Path] | str | Path,
    *,
    format: str = "auto",
    options: CorpusOptions | None = None,
    report: ReadReport | None = None,
) -> Iterator[Document]:
    """Stream the documents of one or several inputs.

    A record is bad if its id was seen before, its text is empty, not valid Unicode, has NUL
    characters or is longer than 4 million characters, or if it is malformed. Bad records are left
    out, counted in `report`, logged at the end, and never change the id of another record; too many
    of them stop the reading. A file that is a document (PDF, HTML, …) and cannot be read is named
    with its reason and its remedy.

    Args:
        inputs: files (also .gz, .bz2, .zst, .xz), folders, "hf:owner/name[[:config]:split]", or
            "irds:name" of ir_datasets.
        format: one of `CORPUS_FORMATS`, or "auto" to decide by file name, then by the first bytes.

    Raises:
        ConfigError: at once, for a format that is unknown or cannot be told.
        DataError: at once, for inputs that do not exist; later, for damaged files, for no documents
            at all, and for a share of bad records above `options.max_bad_share`.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "corpus.jsonl"
        >>> _ = path.write_text('{"id": "1", "title": "Oslo", "text": "Oslo is the capital of Norway."}')
        >>> [document.title for document in read_documents([path])]
        ['Oslo']
    """
    options = options or CorpusOptions()
    report = report if report is not None else ReadReport()
    paths = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    sources = find_sources(
        paths, format, report, text_field=options.text_field or "", exclude=options.exclude
    )
    read = read_sources(sources, options, report)
    return (document for _, document in read if document is not None)


def read_sources(
    sources: Sequence[Source],
    options: CorpusOptions,
    report: ReadReport,
    stored: Collection[Source] = (),
) -> Iterator[tuple[Source, Document | None]]:
    """Stream documents with their sources; None stands for a `stored` file, which is not converted.

    See `read_documents` for the rest.
    """
    for line in first_lines(report.ignored):
        _log.warning("not read: %s", line)
    seen = set[str]()
    for is_file, group in itertools.groupby(sources, lambda source: source.format == DOCUMENTS):
        if is_file:
            yield from _read_files(list(group), options, report, seen, stored)
            continue
        for source in group:
            yield from _read_records(source, options, report, seen)
    report.check(options.max_bad_share, at_end=True)
    # Each by itself: whoever watches files is told of it once.
    for line in first_lines(report.problems):
        _log.warning("%s", line)
    has_more_than_named = report.bad - report.unread > MAX_RECORDS
    if has_more_than_named:
        _log.warning("%s", report.counts())


def _read_records(
    source: Source, options: CorpusOptions, report: ReadReport, seen: set[str]
) -> Iterator[tuple[Source, Document]]:
    n_before = report.total
    fields = DocumentFields(options, source.name)
    try:
        for location, document in _documents_of(source, fields, seen):
            if isinstance(document, Document):
                report.total += 1
                yield source, document
            else:
                report.add_bad(location, document)
                report.check(options.max_bad_share, at_end=False)
    except NoTextError as error:
        if not source.is_in_folder:
            raise
        reason = error.message.removeprefix(f"{source.name}: ")
        remedy = "name the field of the texts as text_field, or leave the file out"
        report.add_bad(source.path, BadRecord("no corpus", f"{reason}; {remedy}"), is_file=True)
        return
    fields.check()
    if fields.layout and fields.layout not in report.notes:
        report.notes.append(fields.layout)
    if report.total == n_before:
        report.add_bad(source.path, BadRecord("no records in it"), is_file=source.is_in_folder)


def _documents_of(
    source: Source, fields: DocumentFields, seen: set[str]
) -> Iterator[tuple[str, Document | BadRecord]]:
    """The documents of a source of records, or why they cannot be used, with their places."""
    if is_named(source.path):
        rows = named_documents(source.path)
    else:
        rows = read_rows(source.path, fields.columns, format=source.format)
    for location, number, row in rows:
        for document in fields.documents(row, number):
            fault = fault_of(document, seen) if isinstance(document, Document) else None
            yield location, fault or document


def _read_files(
    files: Sequence[Source],
    options: CorpusOptions,
    report: ReadReport,
    seen: set[str],
    stored: Collection[Source],
) -> Iterator[tuple[Source, Document | None]]:
    changed = [(file.path, file.name) for file in files if file not in stored]
    converted = convert_files(changed, timeout_s=options.document_timeout)
    for file in files:
        document = None if file in stored else next(converted)
        id = file_id(file.name)
        if not isinstance(document, BadRecord) and id in seen:
            document = BadRecord("duplicate id", f"{id!r}; name each folder once")
        if isinstance(document, BadRecord):
            report.add_bad(file.path, document, is_file=True)
            continue
        seen.add(id)
        report.total += 1
        report.files += 1
        if document is not None:
            report.problems += [f"{file.path}: {note}" for note in document.notes]
        yield file, document
    # Ends the converting processes.
    next(converted, None)


def fault_of(document: Document, seen: set[str]) -> BadRecord | None:
    """Why a document cannot be used, or None.

    Args:
        seen: ids of the usable documents, to which the id of this document is added.
    """
    id = document.id
    text = document.text
    if not id:
        return BadRecord("missing field", "the id is empty")
    if not text or text.isspace():
        return BadRecord("empty text", f"id {id!r}")
    if len(text) > _MAX_CHARS:
        size = f"{len(text):,} characters, limit {_MAX_CHARS:,}"
        return BadRecord("document too long", f"id {id!r} has {size}")
    for value in (id, document.title, text):
        if "\x00" in value or as_unicode(value) != value:
            remedy = "save the file as UTF-8, without NUL characters"
            return BadRecord("not valid Unicode", f"id {id!r}: {remedy}")
    if id in seen:
        return BadRecord("duplicate id", repr(id))
    seen.add(id)
    return None


def passages_of(texts: object) -> list[Passage]:
    """Passages from Python objects.

    Args:
        texts: strings, `Passage` records, or mappings with the fields of a corpus and `metadata`
            for filters; a DataFrame or an Arrow table has such rows. Entries without an id get
            their number.

    Raises:
        DataError: there are no texts, or a text is empty or no string.
    """
    rows = rows_of(
        texts, "texts", hint="put it in a list; files are indexed with `rag index FILE --out DIR`"
    )
    if not rows:
        raise DataError("no texts were given", hint="pass at least one string or Passage")
    fields = DocumentFields(CorpusOptions(), "row", numbers_rows=True)
    passages: list[Passage] = []
    for number, row in enumerate(rows):
        passage = row if isinstance(row, Passage) else _passage_of(row, number, fields)
        if not passage.text.strip():
            raise DataError(f"text {number} is empty", hint="leave it out")
        passages.append(passage)
    if fields.layout:
        _log.info("%s", fields.layout)
    return passages


def _passage_of(row: Any, number: int, fields: DocumentFields) -> Passage:
    if isinstance(row, str):
        return Passage(str(number), "", row)
    document = fields.document(row, number)
    if isinstance(document, BadRecord):
        raise DataError(f"text {number}: {document.reason}, {document.detail}")
    try:
        metadata = dict(metadata_of_fields(row.get("metadata") or {}))
    except ValueError as error:
        raise DataError(f"text {number}: its metadata: {error}", hint=METADATA_HINT) from None
    # The groups that the row itself names.
    metadata.update(document.metadata)
    return Passage(document.id, document.title, document.text, metadata=tuple(metadata.items()))
