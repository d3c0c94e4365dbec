"""An index and its corpus: read to build the index, followed to keep it up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from indexers.documents import Put, record_digest
from indexers.index import Index
from indexers.update import (
    Change,
    DocumentEntries,
    OpenEncoder,
    Unchanged,
    UpdateReport,
    update_index,
)
from rag.core.errors import ConfigError, DataError
from rag.core.files import sha256_file
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.corpus import read_sources
from rag.data.documents.read import file_id
from rag.data.files.sources import DOCUMENTS, Source, find_sources
from rag.data.records import CorpusOptions, Document, ReadReport
from rag.data.split import split_documents
from retrievers.encoders.open import load_like, passage_budget

_LARGE_FILE = 500  # passages; whether a smaller file is half of a corpus matters to nobody
_log = get_logger(__name__)
Cut = Callable[[Document], Iterable[Passage]]


class Corpus:
    """The documents of an index, from the files, folders or data sets that were named.

    Args:
        cut: document → passages.
        report: counts what is read.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        format: str,
        options: CorpusOptions,
        cut: Cut,
        report: ReadReport,
    ) -> None:
        self._options, self._cut, self._report = options, cut, report
        paths = [str(item) for item in inputs]
        self._sources = find_sources(
            paths, format, report, text_field=options.text_field or "", exclude=options.exclude
        )
        self._digest = cache(_digest)

    def describe(self) -> dict[str, Any]:
        """What identifies the passages before they are read."""
        files = []
        for source in self._sources:
            entry = {"name": source.path, "format": source.format}
            if Path(source.path).is_file():
                entry["name"] = (
                    source.name if source.format == DOCUMENTS else Path(source.path).name
                )
                entry["sha256"] = self._digest(source.path)
            files.append(entry)
        # the size of sections is decided by the encoder, and records have none
        has_sections = any(entry["format"] == DOCUMENTS for entry in files)
        options = self._options.model_dump(exclude=set() if has_sections else {"max_tokens"})
        return {"files": files, "options": options}

    def changes(self, stored: DocumentEntries) -> Iterator[Change]:
        """Every document, in the corpus's order, and after these the stored ones that were put by
        themselves.

        Files that are documents and whose bytes did not change are not converted again.
        """
        digests = {
            id: entry.digest for id, entry in stored.items() if entry.digest and not entry.sent
        }
        ids = set[str]()
        sizes = Counter[str]()  # passages of each file that is a document

        def is_stored(file: Source) -> bool:
            return self._digest(file.path) == digests.get(file_id(file.name))

        for source, document in read_sources(self._sources, self._options, self._report, is_stored):
            if document is None:
                change: Change = Unchanged(file_id(source.name))
            else:
                is_file = source.format == DOCUMENTS
                digest = self._digest(source.path) if is_file else record_digest(document)
                if digests.get(document.id) == digest:
                    change = Unchanged(document.id)
                else:
                    change = Put(document.id, digest, list(self._cut(document)))
            if source.format == DOCUMENTS:
                sizes[source.path] = (
                    len(change.passages) if isinstance(change, Put) else stored[change.id].passages
                )
            if stored:
                ids.add(change.id)
            yield change
        _warn_of_half(sizes)
        yield from (
            Unchanged(entry.id) for entry in stored.values() if entry.sent and entry.id not in ids
        )


def _warn_of_half(sizes: Counter[str]) -> None:
    """Name a large file that has half or more of the passages of several files."""
    for path, size in sizes.most_common(1):
        share = size / max(sizes.total(), 1)
        if len(sizes) > 1 and size >= _LARGE_FILE and share >= 0.5:
            _log.warning(
                "%s has %s of %s passages (%.0f %%); --exclude or a line in .ragignore leaves it out",
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
    """

    def __init__(self, index: str | Path, encoder: Any = None, precision: str = "auto") -> None:
        self.place = Path(index)
        self._source = encoder
        self._open: OpenEncoder = cache(
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
    ) -> UpdateReport:
        """Make the index hold the corpus, and after it the documents that were put by `change`.

        Args:
            format, max_bad_share: as for `rag.index`; all else is read and cut as the index was.
            max_deleted_share: highest share of the documents that may be deleted.

        Raises:
            ConfigError: the index cannot be updated.
            DataError: the corpus cannot be read, or too much would be deleted.
            MismatchedArtifactError: the encoder is not that of the index.
        """
        source, cut = self._cutter()
        if "options" not in source:
            raise ConfigError(
                f"{self.place} was not built from files, so it has no corpus to be updated from",
                hint="build it with `rag index FOLDER --out DIR`; documents can also be sent to its server",
            )
        options = CorpusOptions(**{**source["options"], "max_bad_share": max_bad_share})
        report = ReadReport()
        documents = Corpus(corpus, format, options, cut, report)
        if report.unread:
            raise DataError(
                f"{report.problems[0]}, and its documents would be deleted",
                hint="change its permissions; nothing was changed",
            )
        return update_index(
            self.place, documents.changes, self._open, max_deleted_share=max_deleted_share
        )

    def cut(self, documents: Iterable[Document]) -> list[Put]:
        """Documents for `change`, in passages as the index has them."""
        _, cut = self._cutter()
        return [Put(each.id, record_digest(each), list(cut(each)), sent=True) for each in documents]

    def change(self, documents: Iterable[Put], deleted: Iterable[str] = ()) -> UpdateReport:
        """Put documents, each in place of the one with its id or at the end, and delete others."""
        puts = {put.id: put for put in documents}
        gone, present = set(deleted), frozenset[str]()

        def changes(stored: DocumentEntries) -> Iterator[Change]:
            nonlocal present
            present = frozenset(stored) & {*puts, *gone}
            yield from (
                puts.get(id) or Unchanged(id) for id in stored if id in puts or id not in gone
            )
            yield from (put for id, put in puts.items() if id not in stored)

        report = update_index(self.place, changes, self._open)
        report.present = present
        return report

    def _cutter(self) -> tuple[Mapping[str, Any], Cut]:
        """What the index was made from, and how it cuts documents; the first one opens a
        tokenizer.
        """
        with Index.open(self.place, verify="none") as index:
            source, identity = index.source, index.encoder_identity
        name = identity.name if identity else None
        encoder = self._source if isinstance(self._source, str | Path) else name
        stated = dict[str, Any]()
        if identity is not None:
            stated = {name: getattr(identity, name) for name in ("max_length", "passage_prefix")}

        def cut(document: Document) -> Iterable[Passage]:
            max_tokens, count = self._budget(encoder, **stated)
            options = CorpusOptions(**{"max_tokens": max_tokens, **source.get("options", {})})
            return split_documents([document], options, count)

        return source, cut
