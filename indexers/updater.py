"""An index and its corpus: read to build the index, followed to keep it up to date."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from indexers.documents import Put, record_digest
from indexers.index import Index
from indexers.protocols import EncoderIdentity, PassageEncoder
from indexers.update import Change, DocumentEntries, OpenEncoder, Unchanged, UpdateReport, update_index
from rag.core.errors import ConfigError, DataError
from rag.core.files import sha256_file
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.corpus import IdSet, read_files, read_records
from rag.data.documents.limits import Limits
from rag.data.documents.read import file_id
from rag.data.documents.sections import CountTokens
from rag.data.files.rows import STDIN
from rag.data.files.sources import DOCUMENTS, ReadOptions, Source, find_sources
from rag.data.records import Document, ReadReport
from rag.data.split import SplitOptions, split_documents

Budget = Callable[[EncoderIdentity | None], tuple[int, CountTokens]]
Cut = Callable[[Document], list[Passage]]
_log = get_logger(__name__)


class Corpus:
    """The documents of an index, from the files, folders or data sets that were named.

    Args:
        cut: document → passages.
        report: counts what is read.
    """

    def __init__(
        self, inputs: Sequence[str | Path], format: str, options: ReadOptions, cut: Cut, report: ReadReport
    ) -> None:
        self._options, self._cut, self._report = options, cut, report
        self._sources = find_sources([str(item) for item in inputs], format, report)
        self._digests: dict[Source, str] = {}
        if report.ignored:
            _log.warning("%s", report.ignored_summary())

    def _digest(self, source: Source) -> str:
        """Hex sha256 of a file; "" if it cannot be read, which reading says."""
        if source not in self._digests:
            self._digests[source] = ""
            with suppress(OSError):
                self._digests[source] = sha256_file(source.path)
        return self._digests[source]

    def describe(self, split: SplitOptions) -> dict[str, Any] | None:
        """What identifies the passages before they are read; None if that is impossible (standard input)."""
        files = []
        for source in self._sources:
            if source.path == STDIN:
                return None
            entry = {"name": source.path, "format": source.format}
            if Path(source.path).is_file():
                entry["name"] = source.name if source.format == DOCUMENTS else Path(source.path).name
                entry["sha256"] = self._digest(source)
            files.append(entry)
        left_out = {"strict"}  # which changes no passage
        if all(entry["format"] != DOCUMENTS for entry in files):  # no sections, whose size an encoder decides
            left_out.add("max_tokens")
        split_by, read_by = (
            {name: value for name, value in asdict(options).items() if name not in left_out}
            for options in (split, self._options)
        )
        return {"files": files, "split": split_by, "read": read_by}

    def changes(self, known: DocumentEntries) -> Iterator[Change]:
        """Every document, in the corpus's order, and after these the known ones that were put by themselves.

        Files that are documents and whose bytes are known are not converted again.
        """
        digests = {id: entry.digest for id, entry in known.items() if not entry.sent}
        seen, ids = IdSet(), set[str]()
        for is_file, group in itertools.groupby(self._sources, key=lambda source: source.format == DOCUMENTS):
            for change in (self._of_files if is_file else self._of_records)(list(group), digests, seen):
                if known:
                    ids.add(change.id)
                yield change
        self._report.check(self._options.max_bad_share, at_end=True)
        if self._report.bad:
            _log.warning("%s", self._report.faults())
        yield from (Unchanged(entry.id) for entry in known.values() if entry.sent and entry.id not in ids)

    def new(self) -> Iterator[Put]:
        """Every document of a corpus of which nothing is known yet."""
        return (change for change in self.changes({}) if isinstance(change, Put))

    def _of_records(
        self, sources: Sequence[Source], digests: dict[str, str], seen: IdSet
    ) -> Iterator[Change]:
        for document in read_records(sources, self._options, self._report, seen):
            digest = record_digest(document)
            is_known = digests.get(document.id) == digest
            yield Unchanged(document.id) if is_known else Put(document.id, digest, self._cut(document))

    def _of_files(self, files: Sequence[Source], digests: dict[str, str], seen: IdSet) -> Iterator[Change]:
        is_known = [self._digest(file) == digests.get(file_id(file.name)) != "" for file in files]
        changed = [file for file, known in zip(files, is_known, strict=True) if not known]
        documents = read_files(changed, self._options, self._report, seen)
        coming = next(documents, None)
        for file, known in zip(files, is_known, strict=True):
            id = file_id(file.name)
            if known and seen.add(id):
                self._report.files += 1
                self._report.add_good()
                yield Unchanged(id)
            elif not known and coming is not None and coming.id == id:
                yield Put(id, self._digest(file), self._cut(coming))
                coming = next(documents, None)


class IndexUpdater:
    """Updates one index again and again; its encoder is loaded once, when a passage is first to be encoded.

    Args:
        index: directory of the index.
        open_encoder: opens an encoder like the one the index was built with.
        budget: most tokens of a passage for that encoder (None: for an index without one), and a function
            that counts them.
    """

    def __init__(self, index: str | Path, open_encoder: OpenEncoder, budget: Budget) -> None:
        self.place, self._open, self._budget = Path(index), open_encoder, cache(budget)
        self._encoder: tuple[EncoderIdentity, PassageEncoder] | None = None

    def follow(
        self,
        corpus: Sequence[str | Path],
        *,
        format: str = "auto",
        strict: bool = False,
        max_bad_share: float = 0.01,
        max_deleted_share: float = 0.5,
        report: ReadReport | None = None,
    ) -> UpdateReport:
        """Make the index hold the corpus, and after it the documents that were put by `change`.

        Args:
            format, strict, max_bad_share: as for `rag.index`; all else is read and cut as the index was.
            max_deleted_share: highest share of the documents that may be deleted.
            report: counts what was read.
        """
        with Index.open(self.place, verify="none") as index:
            described = index.source
            cut = self._cut_as(index)
        if "read" not in described:
            raise ConfigError(
                f"{self.place} was not built from files, so it has no corpus to be updated from",
                hint="build it with `rag index FOLDER --out DIR`; documents can also be sent to its server",
            )
        stored = {**described["read"], "limits": _known_fields(Limits, described["read"].get("limits", {}))}
        options = replace(_known_fields(ReadOptions, stored), strict=strict, max_bad_share=max_bad_share)
        report = report if report is not None else ReadReport()
        read = Corpus(corpus, format, options, cut, report)
        if report.unread:
            raise DataError(
                f"{report.problems[0].source} may not be read, and its documents would be deleted",
                hint="change its permissions; nothing was changed",
            )
        return update_index(self.place, read.changes, self._open_encoder, max_deleted_share=max_deleted_share)

    def cut(self, documents: Iterable[Document]) -> list[Put]:
        """Documents for `change`, in passages as the index has them."""
        with Index.open(self.place, verify="none") as index:
            cut = self._cut_as(index)
        return [Put(each.id, record_digest(each), cut(each), sent=True) for each in documents]

    def change(self, documents: Iterable[Put], deleted: Iterable[str] = ()) -> UpdateReport:
        """Put documents, each in place of the one with its id or at the end, and delete others."""
        puts = {put.id: put for put in documents}
        gone, present = set(deleted), frozenset[str]()

        def changes(known: DocumentEntries) -> Iterator[Change]:
            nonlocal present
            present = frozenset(known) & {*puts, *gone}
            yield from (puts.get(id) or Unchanged(id) for id in known if id in puts or id not in gone)
            yield from (put for id, put in puts.items() if id not in known)

        report = update_index(self.place, changes, self._open_encoder)
        report.present = present
        return report

    def _cut_as(self, index: Index) -> Cut:
        """How the index cuts documents into passages; what counts tokens is opened for the first one."""
        split, identity = index.source.get("split", {}), index.encoder_identity

        def cut(document: Document) -> list[Passage]:
            max_tokens, count = self._budget(identity)
            options = _known_fields(SplitOptions, {"max_tokens": max_tokens, **split})
            return list(split_documents([document], options, count))

        return cut

    def _open_encoder(self, identity: EncoderIdentity) -> PassageEncoder:
        if self._encoder is None or self._encoder[0] != identity:
            self._encoder = identity, self._open(identity)
        return self._encoder[1]


def _known_fields(kind: Any, values: dict[str, Any]) -> Any:
    """Options of the kind, from those that an index states: earlier programs had others too."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})
