"""Updates of one index, from its corpus or by single documents, that cut and encode as the index does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from indexers.documents import record_digest
from indexers.index import Index
from indexers.protocols import EncoderIdentity, PassageEncoder
from indexers.update import Change, DocumentEntries, OpenEncoder, Put, Unchanged, UpdateReport, update_index
from rag.core.errors import ArtifactError, ConfigError, DataError
from rag.core.files import sha256_file
from rag.core.types import Passage
from rag.data.corpus import IdSet, read_files, read_records
from rag.data.documents.limits import Limits
from rag.data.documents.read import file_id
from rag.data.documents.sections import CountTokens
from rag.data.files.sources import DOCUMENTS, ReadOptions, Source, find_sources
from rag.data.records import Document, ReadReport
from rag.data.split import SplitOptions, split_documents

MAX_DELETED_SHARE = 0.5
Budget = Callable[[EncoderIdentity | None], tuple[int, CountTokens]]
Cut = Callable[[Document], list[Passage]]


class IndexUpdater:
    """Updates one index again and again; its encoder is loaded once, when a passage is first to be encoded.

    Args:
        index: directory of the index.
        open_encoder: opens an encoder like the one the index was built with.
        budget: most tokens of a passage for that encoder (None: for an index without one), and a function
            that counts them.
    """

    def __init__(self, index: str | Path, open_encoder: OpenEncoder, budget: Budget) -> None:
        self.place, self._open, self._budget = Path(index), open_encoder, budget
        self._encoder: tuple[EncoderIdentity, PassageEncoder] | None = None
        self._cut: tuple[Any, Cut] | None = None

    def follow(
        self,
        corpus: Sequence[str | Path],
        *,
        format: str = "auto",
        strict: bool = False,
        max_bad_share: float = 0.01,
        max_deleted_share: float = MAX_DELETED_SHARE,
        report: ReadReport | None = None,
    ) -> UpdateReport:
        """Make the index hold the corpus, and after it the documents that were put by `change`.

        Files with unchanged bytes are not converted again.

        Args:
            format, strict, max_bad_share: as for `rag.index`; all else is read and cut as the index was.
            max_deleted_share: highest share of the documents that may be deleted.
            report: counts what was read.
        """
        with Index.open(self.place, verify="none") as index:
            described, identity = index.source, index.encoder_identity
        if "read" not in described:
            raise ConfigError(
                f"{self.place} was not built from files, so it has no corpus to be updated from",
                hint="build it with `rag index FOLDER --out DIR`; documents can also be sent to its server",
            )
        stored = {**described["read"], "limits": _known_fields(Limits, described["read"].get("limits", {}))}
        options = _known_fields(ReadOptions, stored)
        options = replace(options, strict=strict, max_bad_share=max_bad_share)
        report = report if report is not None else ReadReport()
        sources = find_sources([str(one) for one in corpus], format, report)
        if report.unread:
            raise DataError(
                f"{report.problems[0].source} may not be read, and its documents would be deleted",
                hint="change its permissions; nothing was changed",
            )

        def cut(document: Document) -> list[Passage]:  # which is made when the first document has changed
            return self._cut_as(described, identity)(document)

        return update_index(
            self.place,
            lambda known: _corpus_changes(sources, options, cut, report, known),
            self._open_encoder,
            max_deleted_share=max_deleted_share,
        )

    def cut(self, documents: Iterable[Document]) -> list[Put]:
        """Documents for `change`, in passages as the index has them."""
        with Index.open(self.place, verify="none") as index:
            cut = self._cut_as(index.source, index.encoder_identity)
        return [Put(one.id, record_digest(one), cut(one), sent=True) for one in documents]

    def change(self, documents: Iterable[Put], deleted: Iterable[str] = ()) -> UpdateReport:
        """Put documents, each in place of the one with its id or at the end, and delete others."""
        puts = {put.id: put for put in documents}
        gone, present = set(deleted), frozenset[str]()

        def changes(known: DocumentEntries) -> Iterator[Change]:
            nonlocal present
            present = frozenset(known) & {*puts, *gone}
            for id in known:
                if id in puts:
                    yield puts[id]
                elif id not in gone:
                    yield Unchanged(id)
            yield from (put for id, put in puts.items() if id not in known)

        report = update_index(self.place, changes, self._open_encoder)
        report.present = present
        return report

    def _cut_as(self, described: dict[str, Any], identity: EncoderIdentity | None) -> Cut:
        """How the index cuts documents into passages."""
        split = described.get("split", {})
        if self._cut is None or self._cut[0] != (split, identity):
            max_tokens, count = self._budget(identity)
            options = _known_fields(SplitOptions, {"max_tokens": max_tokens, **split})
            self._cut = (split, identity), lambda one: list(split_documents([one], options, count))
        return self._cut[1]

    def _open_encoder(self, identity: EncoderIdentity) -> PassageEncoder:
        if self._encoder is None or self._encoder[0] != identity:
            self._encoder = identity, self._open(identity)
        return self._encoder[1]


def _known_fields(kind: Any, values: dict[str, Any]) -> Any:
    """Options of the kind, from those that an index states: earlier programs had others too."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def _corpus_changes(
    sources: Sequence[Source], options: ReadOptions, cut: Cut, report: ReadReport, known: DocumentEntries
) -> Iterator[Change]:
    """Every document of a corpus, in its order, and after these the documents that were put by themselves."""
    seen, ids = IdSet(), set[str]()
    for is_file, group in itertools.groupby(sources, key=lambda source: source.format == DOCUMENTS):
        read = _of_files if is_file else _of_records
        for change in read(list(group), options, cut, report, known, seen):
            ids.add(change.id)
            yield change
    if report.total > report.files:
        report.check(options.max_bad_share, at_end=True)
    yield from (Unchanged(entry.id) for entry in known.values() if entry.sent and entry.id not in ids)


def _of_records(
    sources: Sequence[Source], options: ReadOptions, cut: Cut, report: ReadReport, known: DocumentEntries,
    seen: IdSet,
) -> Iterator[Change]:  # fmt: skip
    for document in read_records(sources, options, report, seen):
        digest = record_digest(document)
        is_kept = _digest(known, document.id) == digest
        yield Unchanged(document.id) if is_kept else Put(document.id, digest, cut(document))


def _of_files(
    files: Sequence[Source], options: ReadOptions, cut: Cut, report: ReadReport, known: DocumentEntries,
    seen: IdSet,
) -> Iterator[Change]:  # fmt: skip
    digests = {source: _file_digest(source) for source in files}
    changed = [one for one in files if not digests[one] or _digest(known, file_id(one.name)) != digests[one]]
    documents = read_files(changed, options, report, seen)
    coming = next(documents, None)
    for source, digest in digests.items():
        id = file_id(source.name)
        if digest and _digest(known, id) == digest:
            if seen.add(id):
                report.files += 1
                report.add_good()
                yield Unchanged(id)
        elif coming is not None and coming.id == id:
            yield Put(id, digest, cut(coming))
            coming = next(documents, None)


def _digest(known: DocumentEntries, id: str) -> str:
    """Digest of the corpus's document with this id; "" if there is none."""
    entry = known.get(id)
    return "" if entry is None or entry.sent else entry.digest


def _file_digest(source: Source) -> str:
    try:
        return sha256_file(source.path)
    except (OSError, ArtifactError):  # missing or unreadable: reading it raises the error
        return ""
