"""An index and its corpus: read to build the index, followed to keep it up to date."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from indexers.documents import DocumentEntry, Documents, InOrder, Put
from indexers.index_writer import Content, OpenEncoder, WriteReport, update_index
from indexers.manifest import Manifest
from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.core.files import sha256_file
from rag.core.log import get_logger
from rag.core.types import Groups, Passage
from rag.data.corpus import read_sources
from rag.data.documents.read import file_id
from rag.data.files.sources import Source, find_sources
from rag.data.formats import DOCUMENTS
from rag.data.records import CorpusOptions, Document, ReadReport
from rag.data.split import MAX_SECTION_TOKENS, CountTokens, split_documents
from retrievers.encoders.open import load_like, passage_budget

# Passages; whether a smaller file is half of a corpus matters to nobody.
_LARGE_FILE = 500
_log = get_logger(__name__)
Budget = tuple[int, CountTokens]


class Cutter:
    """How an index reads its documents and cuts them into passages.

    Args:
        stated: fields of `CorpusOptions`; without `max_tokens`, the budget decides it, and
            `MAX_SECTION_TOKENS`.
        open_budget: opens what `passage_budget` returns for the encoder.

    Attributes:
        reading: the options of reading, for which no tokenizer is opened.
    """

    def __init__(self, options: Mapping[str, Any], open_budget: Callable[[], Budget]) -> None:
        self.reading = load_config(CorpusOptions, overrides=options)
        self._budget = cache(open_budget)

    @cached_property
    def options(self) -> CorpusOptions:
        """All options."""
        if "max_tokens" in self.reading.model_fields_set:
            return self.reading
        longest = min(self._budget()[0], MAX_SECTION_TOKENS)
        return self.reading.model_copy(update={"max_tokens": longest})

    def __call__(self, document: Document) -> list[Passage]:
        """The passages of a document."""
        return list(split_documents([document], self.options, self._budget()[1]))


class Corpus:
    """The documents of an index, from the files, folders or data sets that were named.

    Args:
        report: counts what is read.

    Attributes:
        cutter: reads the documents and cuts them.
    """

    def __init__(
        self, inputs: Sequence[str | Path], format: str, cutter: Cutter, report: ReadReport
    ) -> None:
        self.cutter = cutter
        self._report = report
        reading = cutter.reading
        self._sources = find_sources(
            inputs, format, report, text_field=reading.text_field or "", exclude=reading.exclude
        )
        self._digest = cache(_digest)

    def content(self, stored: Documents | None = None) -> Content:
        """Every document, in the corpus's order, and after these the stored ones that were put by
        themselves.

        Files that are documents and whose bytes did not change are not converted again.

        Args:
            stored: the documents of the index; None if there is no index yet.
        """
        # What identifies the passages before they are read.
        files = []
        for source in self._sources:
            entry = {"name": source.path, "format": source.format}
            path = Path(source.path)
            if path.is_file():
                entry["name"] = source.name if source.format == DOCUMENTS else path.name
                entry["sha256"] = self._digest(source.path)
            files.append(entry)

        options = self.cutter.options.model_dump()
        # The size of sections is decided by the encoder, and records have none.
        if not any(source.format == DOCUMENTS for source in self._sources):
            del options["max_tokens"]
        folder_groups = dict[str, Groups]()
        return Content(
            self._changes(stored, folder_groups),
            source={"files": files, "options": options},
            language=self.cutter.reading.language,
            folder_groups=folder_groups,
            notes=self._report.left_out,
        )

    def texts(self) -> Iterator[str]:
        """The texts of passages, as they are read, for a look at the beginning of the corpus."""
        for _, document in read_sources(self._sources, self.cutter.reading, ReadReport()):
            if document is not None:
                for passage in self.cutter(document):
                    yield passage.text

    def _changes(
        self, stored: Documents | None, folder_groups: dict[str, Groups]
    ) -> Iterator[Put | DocumentEntry]:
        """The documents of `content`.

        Args:
            folder_groups: gets the groups that folders state, by the ids of their documents.
        """
        in_order = None if stored is None else InOrder(stored)
        replaced = set[str]()  # ids of documents that were put by themselves
        sizes = Counter[str]()  # passages of each file that is a document

        def unchanged(id: str, digest: str) -> DocumentEntry | None:
            entry = None if in_order is None else in_order.find(id)
            if entry is None:
                return None
            if entry.sent:
                replaced.add(id)
                return None
            return entry if digest and entry.digest == digest else None

        stored_files = dict[Source, DocumentEntry]()
        for source in self._sources:
            if source.format == DOCUMENTS:
                entry = unchanged(file_id(source.name), self._digest(source.path))
                if entry is not None:
                    stored_files[source] = entry
        options = self.cutter.reading
        for source, document in read_sources(self._sources, options, self._report, stored_files):
            is_file = source.format == DOCUMENTS
            change: Put | DocumentEntry | None
            if document is None:
                change = stored_files[source]
            elif is_file:
                change = Put(document.id, self._digest(source.path), self.cutter(document))
            else:
                digest = record_digest(document)
                change = unchanged(document.id, digest)
                change = change or Put(document.id, digest, self.cutter(document))
            if source.groups is not None:
                folder_groups[change.id] = source.groups
            if is_file:
                passages = change.passages if isinstance(change, Put) else change.rows
                sizes[source.path] = len(passages)
            yield change

        _warn_of_half(sizes)
        for entry in stored or ():
            if entry.sent and entry.id not in replaced:
                yield entry


def record_digest(document: Document) -> str:
    """Hex digest of a record's content."""
    content = [document.title, document.text, document.metadata]
    encoded = json.dumps(content).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def _warn_of_half(sizes: Counter[str]) -> None:
    """Name a large file that has half or more of the passages of several files."""
    for path, size in sizes.most_common(1):
        share = size / max(sizes.total(), 1)
        if len(sizes) > 1 and size >= _LARGE_FILE and share >= 0.5:
            _log.warning(
                "%s has %s of %s passages (%.0f %%); a line in exclude or .ragignore leaves it out",
                path,
                f"{size:,}",
                f"{sizes.total():,}",
                100 * share,
            )


def _digest(path: str) -> str:
    """Hex sha256 of a file; "" if it cannot be read, which reading says."""
    with suppress(OSError):
        return sha256_file(path)
    return ""


class IndexUpdater:
    """Updates one index again and again; its encoder is loaded once, when a passage is first to be
    encoded.

    Args:
        index: directory of the index.
        encoder, precision: the encoder of the index, if it moved, and its number format.
        open_encoder: opens it in another way.
    """

    def __init__(
        self,
        index: str | Path,
        encoder: Any = None,
        precision: str = "auto",
        open_encoder: OpenEncoder | None = None,
    ) -> None:
        self.directory = Path(index)
        self._encoder = encoder
        self._open: OpenEncoder = open_encoder or cache(
            lambda identity: load_like(identity, encoder, precision=precision)
        )
        self._budget = cache(passage_budget)

    def follow(
        self,
        corpus: Sequence[str | Path],
        *,
        format: str = "auto",
        max_bad_share: float = 0.01,
        max_deleted_share: float = 0.5,
    ) -> WriteReport:
        """Make the index hold the corpus, and after it the documents that were put by `change`.

        Args:
            format, max_bad_share: as for `rag.index`; all else is read and cut as the index was.
            max_deleted_share: highest share of the documents that may be deleted.

        Raises:
            ConfigError: the index cannot be updated.
            DataError: the corpus cannot be read, or too much would be deleted.
            MismatchedArtifactError: the encoder is not that of the index.
        """
        if "options" not in Manifest.read(self.directory).source:
            raise ConfigError(
                f"{self.directory} was not built from files, so it has no corpus to be updated from",
                hint="build it with `rag index FOLDER --out DIR`; documents can also be sent to its server",
            )
        report = ReadReport()
        documents = Corpus(corpus, format, self._cutter(max_bad_share=max_bad_share), report)
        if report.unread:
            raise DataError(
                f"{report.problems[0]}, and its documents would be deleted",
                hint="change its permissions; nothing was changed",
            )
        return update_index(
            self.directory, documents.content, self._open, max_deleted_share=max_deleted_share
        )

    def cut(self, documents: Iterable[Document]) -> list[Put]:
        """Documents for `change`, in passages as the index has them."""
        cutter = self._cutter()
        return [
            Put(document.id, record_digest(document), cutter(document), sent=True)
            for document in documents
        ]

    def change(self, documents: Iterable[Put], deleted: Iterable[str] = ()) -> WriteReport:
        """Put documents, each in place of the one with its id or at the end, and delete others."""
        puts = {put.id: put for put in documents}
        gone = set(deleted)

        def changed(stored: Documents) -> Iterator[Put | DocumentEntry]:
            for entry in stored:
                put = puts.pop(entry.id, None)
                if put is not None:
                    yield put
                elif entry.id not in gone:
                    yield entry
            yield from puts.values()

        return update_index(self.directory, changed, self._open)

    def _cutter(self, **changed: Any) -> Cutter:
        """How the index reads and cuts; the first document that is cut opens a tokenizer."""
        manifest = Manifest.read(self.directory)
        options = {**manifest.source.get("options", {}), **changed}
        moved = self._encoder if isinstance(self._encoder, str | Path) else None
        stored = manifest.encoder
        if stored is None:
            return Cutter(options, partial(self._budget, moved))
        budget = partial(
            self._budget,
            moved or stored.name,
            max_length=stored.max_length,
            passage_prefix=stored.passage_prefix,
        )
        return Cutter(options, budget)
