"""Bring an index up to date: its next version is a rebuild that takes over what did not change.

Passages of unchanged documents are copied from the version that is there, known vectors too, and
whole files of them are shared by hard links; Lucene and FAISS are built anew. Nothing that readers
use is changed: a crash leaves the old version or the new one, and a process that has the old one
open goes on with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from indexers.build import PROBES_NAME, build_passages, build_stages, settings_of_stages
from indexers.documents import DocumentEntry, Put
from indexers.embeddings import EmbeddingShards, StoredVectors, encode_corpus
from indexers.index import Index
from indexers.ledger import UPDATING_DIR, BuildLedger, read_index_manifest, remove_unused
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity, PassageEncoder
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, DataError
from rag.core.files import directory_lock, link_or_copy
from rag.core.types import Passage

OpenEncoder = Callable[[EncoderIdentity], PassageEncoder]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A document that stays as it is."""

    id: str


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
        counts = (
            f"{getattr(self, name):,} {name}" for name in ("added", "replaced", "deleted", "kept")
        )
        vectors = f", of which {self.reused:,} had their vectors" if self.reused else ""
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
            if index.tokens is not None:
                raise ConfigError(
                    f"{place} has a vector per token (index type plaid), which cannot be updated",
                    hint="build it again with --overwrite; other index types can be updated",
                )
            report, ledger = (
                UpdateReport(index.version),
                BuildLedger(place, UPDATING_DIR, replaces=True),
            )
            # A later build sees that the files are not those of the first one.
            source = {**index.source, **({"files": "updated"} if "files" in index.source else {})}
            documents = _next_documents(index, changes, report, max_deleted_share)
            store = build_passages(documents, ledger, source or None)
            files = index.manifest["files"]
            if ledger.stage("passages")["files"] == {
                n: files[n] for n in files if n.startswith("passages/")
            }:
                shutil.rmtree(ledger.folder)
            else:
                report.version = _build(index, store, ledger, encoder, report)
        remove_unused(place)
    return report


def _next_documents(
    index: Index,
    changes: Callable[[DocumentEntries], Iterable[Change]],
    report: UpdateReport,
    max_deleted_share: float,
) -> Iterator[Put]:
    """The documents of the next version, counted while they are read."""
    stored, seen = index.documents, set[str]()
    in_order, position = iter(index.passages), 0

    def passages_of(entry: DocumentEntry) -> list[Passage]:
        nonlocal position
        rows = range(entry.first, entry.first + entry.passages)
        if not rows or rows.start < position:  # the order has changed
            return index.passages.get_many(rows)
        start, position = position, rows.stop
        return list(islice(in_order, rows.start - start, rows.stop - start))

    for change in changes(stored):
        if change.id in seen:
            raise DataError(f"the document {change.id!r} comes twice", hint="make the ids unique")
        seen.add(change.id)
        old = stored.get(change.id)
        passages = [] if old is None else passages_of(old)
        if isinstance(change, Unchanged):
            if old is None:
                raise DataError(f"there is no document {change.id!r} to keep")
            change = Put(old.id, old.digest, passages, sent=old.sent)
        if old is not None and passages == change.passages:
            report.kept += 1
        else:
            report.added += old is None
            report.replaced += old is not None
            report.passages += len(change.passages)
        yield change
    report.deleted = len(stored.keys() - seen)
    if report.deleted > max_deleted_share * len(stored):
        raise DataError(
            f"{report.deleted:,} of the {len(stored):,} documents in {index.directory} would be deleted "
            f"(limit {max_deleted_share:.0%})",
            hint="check that the corpus is the one of this index, or raise --max-deleted-share",
        )


class _LazyEncoder:
    """The encoder of an index with vectors, opened when the first passage is to be encoded."""

    def __init__(self, index: Index, open_encoder: OpenEncoder) -> None:
        self._index, self._open, self._encoder = (
            index,
            open_encoder,
            cast("PassageEncoder | None", None),
        )
        _, embeddings, self.identity = index.require_dense()
        self.dim = embeddings.dim

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32, in the order of the arguments."""
        if self._encoder is None:
            self._encoder = self._open(self.identity)
            self._index.check_encoder(self._encoder.identity)
        return self._encoder.encode_passages(titles, texts)


def _build(
    index: Index,
    store: PassageStore,
    ledger: BuildLedger,
    encoder: OpenEncoder,
    report: UpdateReport,
) -> str:
    """Build the next version over its passages and make it the index; returns its version."""
    settings = settings_of_stages(index.manifest)
    if (old := index.embeddings) is None:
        build_stages(settings.stages, store, ledger, None, settings)
        return ledger.commit(settings.stages)
    vectors = StoredVectors(index.passages, old)

    def encode(place: Path, *args: Any, **options: Any) -> EmbeddingShards:
        place.mkdir(parents=True, exist_ok=True)
        if not (probes := place / PROBES_NAME).exists():  # they stay questions of the same kind
            link_or_copy(old.directory / PROBES_NAME, probes)
        return encode_corpus(place, *args, stored=vectors, **options)

    build_stages(settings.stages, store, ledger, _LazyEncoder(index, encoder), settings, encode)
    report.reused = max(0, vectors.reused - (len(store) - report.passages))
    return ledger.commit(settings.stages)
