"""Corpora: documents from every format, checked one by one and counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, as_unicode
from rag.data.documents.read import convert_files, file_id
from rag.data.files.fields import DocumentFields
from rag.data.files.named import is_named, named_documents
from rag.data.files.question_sets import squad_paragraphs
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

_MAX_CHARS = 4_000_000  # a longer document is rarely one
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
        ConfigError: at once, for an unknown format or one that cannot be told.
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
    return (
        document for _, document in read_sources(sources, options, report) if document is not None
    )


def read_sources(
    sources: Sequence[Source],
    options: CorpusOptions,
    report: ReadReport,
    is_stored: Callable[[Source], bool] = lambda file: False,
) -> Iterator[tuple[Source, Document | None]]:
    """Stream documents with their sources; None stands for a file that `is_stored`, which is not
    converted.

    See `read_documents` for the rest.
    """
    for line in first_lines(report.ignored):
        _log.warning("not read: %s", line)
    seen = set[str]()
    for is_file, group in itertools.groupby(sources, key=lambda source: source.format == DOCUMENTS):
        if is_file:
            yield from _read_files(list(group), options, report, seen, is_stored)
        else:
            yield from _read_records(group, options, report, seen)
    report.check(options.max_bad_share, at_end=True)
    for line in first_lines(
        report.problems
    ):  # each by itself: whoever watches files is told of it once
        _log.warning("%s", line)
    if report.bad - report.unread > MAX_RECORDS:  # more than are named
        _log.warning("%s", report.counts())


def _read_records(
    sources: Iterable[Source], options: CorpusOptions, report: ReadReport, seen: set[str]
) -> Iterator[tuple[Source, Document]]:
    for source in sources:
        before = report.total
        fields = DocumentFields(options, source.name)
        rows = read_rows(source.path, fields.columns, format=source.format)
        if is_named(source.path):
            rows = named_documents(source.path)
        for place, number, row in rows:
            paragraphs = squad_paragraphs(row)
            for record in [row] if paragraphs is None else paragraphs:
                item = fields.document(record, number)
                if isinstance(item, Document):
                    item = fault_of(item, seen) or item
                if isinstance(item, BadRecord):
                    report.add_bad(place, item)
                    report.check(options.max_bad_share, at_end=False)
                else:
                    report.total += 1
                    yield source, item
        fields.check()
        if fields.layout and fields.layout not in report.notes:
            report.notes.append(fields.layout)
        if report.total == before:
            report.add_bad(source.path, BadRecord("no records in it"))


def _read_files(
    files: Sequence[Source],
    options: CorpusOptions,
    report: ReadReport,
    seen: set[str],
    is_stored: Callable[[Source], bool],
) -> Iterator[tuple[Source, Document | None]]:
    stored = list(map(is_stored, files))
    changed = [
        (file.path, file.name) for file, is_same in zip(files, stored, strict=True) if not is_same
    ]
    converted = convert_files(changed, timeout_s=options.document_timeout)
    for file, is_same in zip(files, stored, strict=True):
        id, item = file_id(file.name), None if is_same else next(converted)
        if not isinstance(item, BadRecord) and id in seen:
            item = BadRecord("duplicate id", f"{id!r}; name each folder once")
        if isinstance(item, BadRecord):
            report.add_bad(file.path, item, is_file=True)
            continue
        seen.add(id)
        report.total += 1
        report.files += 1
        report.problems += [f"{file.path}: {note}" for note in (item.notes if item else ())]
        yield file, item
    next(converted, None)  # ends the converting processes


def fault_of(document: Document, seen: set[str]) -> BadRecord | None:
    """Why a document cannot be used, or None; a usable one has its id remembered."""
    id, title, text = document.id, document.title, document.text
    if not id:
        return BadRecord("missing field", "the id is empty")
    if not text or text.isspace():
        return BadRecord("empty text", f"id {id!r}")
    if len(text) > _MAX_CHARS:
        return BadRecord(
            "document too long", f"id {id!r} has {len(text):,} characters, limit {_MAX_CHARS:,}"
        )
    if any("\x00" in value or as_unicode(value) != value for value in (id, title, text)):
        return BadRecord(
            "not valid Unicode", f"id {id!r}: save the file as UTF-8, without NUL characters"
        )
    if id in seen:
        return BadRecord("duplicate id", repr(id))
    seen.add(id)
    return None


def passages_of(texts: Any) -> list[Passage]:
    """Passages from Python objects.

    Args:
        texts: strings, `Passage` records, or mappings with the fields of a corpus and `metadata`
            for filters; a DataFrame or an Arrow table has such rows. Entries without an id get
            their number.

    Raises:
        DataError: there are none, or one is empty or no text.
    """
    rows = rows_of(
        texts, "texts", hint="put it in a list; files are indexed with `rag index FILE --out DIR`"
    )
    if not rows:
        raise DataError("no texts were given", hint="pass at least one string or Passage")
    fields = DocumentFields(CorpusOptions(), "row")
    passages = list[Passage]()
    for number, row in enumerate(rows):
        if isinstance(row, str):
            row = Passage(str(number), "", row)
        elif not isinstance(row, Passage):
            document = fields.document(row, number)
            if isinstance(document, BadRecord):
                raise DataError(f"text {number}: {document.reason}, {document.detail}")
            try:
                metadata = metadata_of_fields(row.get("metadata") or {})
            except ValueError as error:
                raise DataError(
                    f"text {number}: its metadata: {error}", hint=METADATA_HINT
                ) from None
            row = Passage(document.id, document.title, document.text, metadata=metadata)
        if not row.text.strip():
            raise DataError(f"text {number} is empty", hint="leave it out")
        passages.append(row)
    if fields.layout:
        _log.info("%s", fields.layout)
    return passages
