"""Bring an index up to date: its next version is a rebuild that takes over what did not change.

Passages of unchanged documents are copied from the version that is there, known vectors too, and whole files
of them are shared by hard links; Lucene and FAISS are built anew. Nothing that readers use is changed: a
crash leaves the old version or the new one, and a process that has the old one open goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from indexers.build import build_passages, build_stages, settings_of_stages
from indexers.documents import DocumentEntry, DocumentList
from indexers.embedding_shards import EmbeddingShards, shard_name
from indexers.embeddings import EmbeddingWriter, encode_corpus, encode_unknown, ledger_line
from indexers.index import Index
from indexers.ledger import UPDATING_DIR, BuildLedger, read_index_manifest, remove_unused
from indexers.probes import PROBES_NAME
from indexers.protocols import EncoderIdentity, EncodesCorpus, PassageEncoder
from rag.core.arrays import Bool, Float32, Int64
from rag.core.errors import ConfigError, DataError
from rag.core.files import directory_lock, link_or_copy
from rag.core.types import Passage

_FEW = 1024  # passages that are read one by one, and not by a pass over the store
OpenEncoder = Callable[[EncoderIdentity], PassageEncoder]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A document that stays as it is."""

    id: str


@dataclass(frozen=True, slots=True)
class Put:
    """A document that is new, or takes the place of the one with its id; see `DocumentEntry`."""

    id: str
    digest: str
    passages: list[Passage]
    sent: bool = False


Change = Unchanged | Put
DocumentEntries = Mapping[str, DocumentEntry]


@dataclass(slots=True)
class UpdateReport:
    """Result of an update.

    Attributes:
        version: version of the index afterwards.
        added, replaced, deleted, kept: numbers of documents.
        passages: number of passages of the documents added and replaced.
        reused: number of these passages whose vector was stored already.
        present: of documents sent and deleted, the ids that were there before.
    """

    version: str
    added: int = 0
    replaced: int = 0
    deleted: int = 0
    kept: int = 0
    passages: int = 0
    reused: int = 0
    present: frozenset[str] = frozenset()

    @property
    def is_changed(self) -> bool:
        """Whether any document has changed."""
        return bool(self.added or self.replaced or self.deleted)

    def __str__(self) -> str:
        if not self.is_changed:
            return f"{self.kept:,} documents, none changed"
        counts = (f"{getattr(self, name):,} {name}" for name in ("added", "replaced", "deleted", "kept"))
        vectors = f", of which {self.reused:,} had their vectors" * bool(self.reused)
        return f"documents: {', '.join(counts)}; {self.passages:,} passages written{vectors}"


def update_index(
    place: str | Path,
    changes: Callable[[DocumentEntries], Iterable[Change]],
    encoder: OpenEncoder,
    *,
    max_deleted_share: float = 1.0,
) -> UpdateReport:
    """Make an index hold exactly the documents that `changes` gives, in that order.

    Args:
        changes: function from the documents of the index to those of its next version.
        encoder: opens the encoder of the index; called only if passages have to be encoded.
        max_deleted_share: highest share of the documents that may be deleted.

    Raises:
        ConfigError: this index cannot be updated; the message says what to do.
        DataError: more is deleted than `max_deleted_share`, nothing is left, or an id comes twice.
        ResourceError: another process writes into `place`, or the disk is full.
    """
    place = Path(place)
    read_index_manifest(place)  # first, because the lock would create the folder
    with directory_lock(place):
        with Index.open(place) as index:
            _refuse_unfit(index)
            report = UpdateReport(index.version)
            plan = _Plan(index, changes(index.documents), report)
            plan.check(max_deleted_share)
            if report.is_changed or plan.entries != list(index.documents.values()):
                report.version = _write(index, plan, _LazyEncoder(index, encoder))
        remove_unused(place)
    return report


def _refuse_unfit(index: Index) -> None:
    if index.tokens is not None:
        raise ConfigError(
            f"{index.directory} has a vector per token (index type plaid), which cannot be updated",
            hint="build it again with --overwrite; other index types can be updated",
        )
    if index.source.get("split", {}).get("ids") == "integer":
        raise ConfigError(
            f"the passages of {index.directory} are numbered 1, 2, …, and an update would change their ids",
            hint="build it with --passage-ids document",
        )


class _Plan:
    """The next version of an index: its documents, and where their passages come from.

    Attributes:
        entries: the documents in order.
        parts: for each run of documents the rows of the old version, or the new passages.
    """

    def __init__(self, index: Index, changes: Iterable[Change], report: UpdateReport) -> None:
        self.index, self.report, known = index, report, index.documents
        self.entries: list[DocumentEntry] = []
        self.parts: list[range | list[Passage]] = []
        replaced: list[DocumentEntry] = []
        seen, first = set[str](), 0
        for change in changes:
            if change.id in seen:
                raise DataError(f"the document {change.id!r} comes twice", hint="make the ids unique")
            seen.add(change.id)
            entry = old = known.get(change.id)
            if isinstance(change, Put):
                entry = DocumentEntry(change.id, change.digest, len(change.passages), first, change.sent)
            if entry is None:
                raise DataError(f"there is no document {change.id!r} to keep")
            self.entries.append(replace(entry, first=first))
            first += entry.passages
            if old is not None and (isinstance(change, Unchanged) or self._has(old, change.passages)):
                report.kept += 1
                self._keep(range(old.first, old.first + old.passages))
                continue
            assert isinstance(change, Put)
            report.added += old is None
            report.replaced += old is not None
            report.passages += len(change.passages)
            replaced += [] if old is None else [old]
            self.parts.append(change.passages)
        gone = [entry for id, entry in known.items() if id not in seen]
        report.deleted = len(gone)
        self.leaving = [
            row for one in (*replaced, *gone) for row in range(one.first, one.first + one.passages)
        ]

    def _has(self, entry: DocumentEntry, passages: Sequence[Passage]) -> bool:
        rows = range(entry.first, entry.first + entry.passages)
        return len(rows) == len(passages) and self.index.passages.get_many(rows) == passages

    def _keep(self, rows: range) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(last, range) and last.stop == rows.start:
            self.parts[-1] = range(last.start, rows.stop)
        else:
            self.parts.append(rows)

    def check(self, max_deleted_share: float) -> None:
        """Refuse an update that deletes too much, or leaves nothing."""
        known, place = len(self.index.documents), self.index.directory
        if self.report.deleted > max_deleted_share * known:
            raise DataError(
                f"{self.report.deleted:,} of the {known:,} documents in {place} would be deleted "
                f"(limit {max_deleted_share:.0%})",
                hint="check that the corpus is the one of this index, or raise --max-deleted-share",
            )
        if not any(map(len, self.parts)):
            raise DataError(
                "no passage would be left in the index", hint="delete the folder if it is not needed any more"
            )

    def passages(self) -> Iterator[Passage]:
        """All passages, in order."""
        store = self.index.passages
        for part in self.parts:
            if not isinstance(part, range):
                yield from part
            elif len(part) <= _FEW:
                yield from store.get_many(part)
            else:
                yield from chain.from_iterable(store.batches(_FEW, start=part.start, stop=part.stop))

    def old_rows(self) -> Int64:
        """(N,): the row of the old version with the vector of each passage; -1 where there is none."""
        texts = {(one.title, one.text): row for row, one in self._leaving_passages()}
        rows = [
            np.arange(part.start, part.stop)
            if isinstance(part, range)
            else np.array([texts.get((one.title, one.text), -1) for one in part], np.int64)
            for part in self.parts
        ]
        found = np.concatenate(rows)
        self.report.reused = self.report.passages - int((found < 0).sum())
        return found

    def _leaving_passages(self) -> Iterator[tuple[int, Passage]]:
        if self.report.passages:
            yield from zip(self.leaving, self.index.passages.get_many(self.leaving), strict=True)


class _LazyEncoder:
    """The encoder of an index, opened when the first passage is to be encoded."""

    def __init__(self, index: Index, open_encoder: OpenEncoder) -> None:
        self._index, self._open = index, open_encoder
        self._opened: PassageEncoder | None = None
        if index.embeddings is not None:
            self.identity, self.dim = index.embeddings.encoder, index.embeddings.dim

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32, in the order of the arguments."""
        if self._opened is None:
            identity = self._index.encoder_identity
            assert identity is not None
            self._opened = self._open(identity)
            self._index.check_encoder(self._opened.identity)
        return self._opened.encode_passages(titles, texts)


def _write(index: Index, plan: _Plan, encoder: _LazyEncoder) -> str:
    """Build the next version and make it the index; returns its version."""
    settings = settings_of_stages(index.inputs, index.manifest.get("dense", {}).get("factory", ""))
    ledger = BuildLedger(index.directory, UPDATING_DIR, replaces=True)
    listed = DocumentList()
    for entry in plan.entries:
        listed.append(entry.id, entry.digest, passages=entry.passages, sent=entry.sent)
    # a later build sees that the files are not those of the first one
    source = {**index.source, **({"files": "updated"} if "files" in index.source else {})}
    store = build_passages(plan.passages(), ledger, source or None, listed)
    encode = (
        encode_corpus if index.embeddings is None else _encoding(index, index.embeddings, plan.old_rows())
    )
    build_stages(settings.stages, store, ledger, encoder, settings, encode)
    return ledger.commit(settings.stages)


def _encoding(index: Index, old: EmbeddingShards, old_rows: Int64) -> EncodesCorpus:
    """Encodes a corpus, taking the vectors of `old_rows` (N,) from the old version."""

    def find_known(start: int, stop: int) -> tuple[Float32, Bool]:
        rows = old_rows[start:stop]
        vectors, is_known = np.empty((stop - start, old.dim), np.float32), rows >= 0
        vectors[is_known] = old.rows(rows[is_known])
        return vectors, is_known

    def take_shard(writer: EmbeddingWriter, shard: int) -> bool:
        probes = writer.directory / PROBES_NAME
        if not probes.exists():  # they stay questions of the same kind
            link_or_copy(old.directory / PROBES_NAME, probes)
        start, stop = writer.header.shard_range(shard)
        if not _is_shard(old, shard, old_rows[start:stop]):
            return False
        name = shard_name(shard)
        link_or_copy(old.directory / name, writer.directory / name)
        sha256 = index.manifest["files"][f"embeddings/{name}"]["sha256"]
        writer.record(ledger_line(writer.header, shard, sha256))
        return True

    return partial(encode_unknown, find_known, take_shard=take_shard)


def _is_shard(old: EmbeddingShards, shard: int, rows: Int64) -> bool:
    """Whether these are exactly the rows of one of the old version's files."""
    return shard < old.shards and np.array_equal(rows, np.arange(*old.header.shard_range(shard)))
