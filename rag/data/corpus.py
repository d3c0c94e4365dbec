"""Corpora: documents from every format, checked one by one and counted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from rag.core.log import get_logger
from rag.data.files.articles import read_text_file, read_wikiextractor
from rag.data.files.base import Reader, ReadOptions, Records, Source
from rag.data.files.delimited import read_parquet, read_table
from rag.data.files.huggingface import read_huggingface
from rag.data.files.json_file import read_json_documents, read_jsonl
from rag.data.files.sources import CORPUS_FORMATS, find_sources, sniff_bytes
from rag.data.files.streams import STDIN, open_binary
from rag.data.records import BadRecord, Document, Problem, ReadReport

__all__ = ["CORPUS_FORMATS", "Document", "IdSet", "Problem", "ReadOptions", "ReadReport", "read_documents"]

_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "jsonl": read_jsonl,
        "json": read_json_documents,
        "tsv": partial(read_table, delimiter="\t"),
        "csv": partial(read_table, delimiter=","),
        "parquet": read_parquet,
        "wikiextractor": read_wikiextractor,
        "hotpot": partial(read_jsonl, text_lists_are_sentences=True),
        "text": read_text_file,
        "hf": read_huggingface,
    }
)
_UNITS = {"json": "record", "parquet": "record", "hf": "record", "text": "file"}
_log = get_logger(__name__)


def read_documents(
    inputs: Sequence[str | Path] | str | Path,
    *,
    format: str = "auto",
    options: ReadOptions | None = None,
    report: ReadReport | None = None,
) -> Iterator[Document]:
    """Stream the documents of one or several inputs.

    A record is bad if its id was seen before, its text is empty, not valid Unicode, has NUL characters or is
    longer than `options.max_document_chars`, or if it is malformed. Bad records are left out, counted in
    `report`, logged at the end, and never change the id of another record; too many of them stop the reading.

    Args:
        inputs: files (also .gz, .bz2, .zst, .xz), folders, glob patterns, "-" for standard input, or
            "hf:owner/name[:config][:split]".
        format: one of `CORPUS_FORMATS`, or "auto" to decide by file name, then by the first bytes.

    Raises:
        ConfigError: at once, for an unknown format or one that cannot be told.
        DataError: at once, for inputs that do not exist; later, for damaged files, for no documents at all,
            and for a share of bad records above `options.max_bad_share` (judged from 100 records on, and at
            the end).

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "corpus.jsonl"
        >>> _ = path.write_text('{"id": "1", "title": "Oslo", "text": "Oslo is the capital of Norway."}')
        >>> [document.title for document in read_documents([path])]
        ['Oslo']
    """
    options = options or ReadOptions()
    report = report if report is not None else ReadReport()
    report.shown = options.shown_problems
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    sources = find_sources(given, format, report)
    for name in report.ignored[:5]:
        _log.warning("not read, no known format: %s", name)
    return _read(sources, options, report)


def _read(sources: Sequence[Source], options: ReadOptions, report: ReadReport) -> Iterator[Document]:
    seen = IdSet()
    for source in sources:
        shown = source.path if source.path != STDIN else "stdin"
        unit = _UNITS.get(source.format, "line")
        before = report.total
        for position, item in _open(source, options):
            if isinstance(item, BadRecord):
                problem: BadRecord | None = item
            else:
                problem = _fault(item, options, seen)
                if problem is None:
                    report.add_good()
                    yield item
            if problem is None:
                continue
            report.add_bad(Problem(shown, position, unit, problem.reason, problem.detail))
            report.check(options.max_bad_share, at_end=False)
        if report.total == before:
            report.add_bad(Problem(shown, 0, "file", "no records in it"))
    report.check(options.max_bad_share, at_end=True)
    if report.bad:
        _log.warning("%s", report.summary())


def _open(source: Source, options: ReadOptions) -> Records:
    if source.path != STDIN:
        yield from _READERS[source.format](source, options)
        return
    with open_binary(STDIN) as stream:
        chosen = sniff_bytes(stream.peek(1), "standard input") if source.format == "auto" else source.format
        yield from _READERS[chosen](replace(source, format=chosen, stream=stream), options)


def _fault(document: Document, options: ReadOptions, seen: IdSet) -> BadRecord | None:
    """Why a document cannot be used, or None; a usable one has its id remembered."""
    if not document.id:
        return BadRecord("missing field", "the id is empty")
    if not document.text or document.text.isspace():
        return BadRecord("empty text", f"id {document.id!r}")
    if len(document.text) > options.max_document_chars:
        found = (
            f"id {document.id!r} has {len(document.text):,} characters, limit {options.max_document_chars:,}"
        )
        return BadRecord("document too long", found)
    for value in (document.id, document.title, document.text):
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                return BadRecord("not valid Unicode", f"character {error.start} of id {document.id!r}")
        if "\x00" in value:
            return BadRecord("NUL character", f"id {document.id!r}")
    if not seen.add(document.id):
        return BadRecord("duplicate id", repr(document.id))
    return None


class IdSet:
    """Remembers ids by 8-byte hashes in an open-addressing table.

    Two different ids share a hash with a chance of about n² / 2⁶⁵: one in 80,000 for a corpus of 21 million.

    Example:
        >>> seen = IdSet()
        >>> seen.add("a"), seen.add("a"), len(seen)
        (True, False, 1)
    """

    def __init__(self, initial_bits: int = 12) -> None:
        self._count = 0
        self._allocate(initial_bits)

    def _allocate(self, bits: int) -> None:
        self._shift = 64 - bits
        self._limit = (1 << bits) * 3 // 4
        # The tail takes probes that run past the last home slot, so that no probe wraps around.
        self._table = np.zeros((1 << bits) + 512, dtype=np.uint64)
        self._slots = self._table.data
        self._bits = bits

    def __len__(self) -> int:
        return self._count

    def add(self, item: str) -> bool:
        """Remember `item`; False if it was there already."""
        key = (
            int.from_bytes(hashlib.blake2b(item.encode("utf-8", "surrogatepass"), digest_size=8).digest())
            or 1
        )
        while True:
            slots = self._slots
            slot = key >> self._shift
            end = len(slots)
            while slot < end and (found := slots[slot]):
                if found == key:
                    return False
                slot += 1
            if slot < end and self._count < self._limit:
                slots[slot] = key
                self._count += 1
                return True
            self._grow()

    def _grow(self) -> None:
        keys = np.sort(self._table[self._table != 0])
        bits = self._bits
        while True:
            bits += 1
            self._allocate(bits)
            order = np.arange(len(keys))
            # Sorted by home slot, each key goes to its home or right behind the key before it.
            homes = (keys >> np.uint64(self._shift)).astype(np.int64)
            slots = np.maximum.accumulate(homes - order) + order
            if not len(slots) or slots[-1] < len(self._table):
                self._table[slots] = keys
                return
