"""Bring an index up to date: its next version is a rebuild that takes over what did not change.

Passages of unchanged documents are copied from the version that is there, known vectors too, and whole files
of them are shared by hard links; Lucene and FAISS are built anew. Nothing that readers use is changed: a
crash leaves the old version or the new one, and a process that has the old one open goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from indexers.build import build_passages, build_stages, settings_of_stages
from indexers.documents import DocumentEntry, DocumentList, Put
from indexers.embedding_shards import EmbeddingShards
from indexers.index import Index
from indexers.ledger import UPDATING_DIR, BuildLedger, read_index_manifest, remove_unused
from indexers.passages import PassageStore
from indexers.probes import PROBES_NAME
from indexers.protocols import EncoderIdentity, PassageEncoder
from indexers.reuse import KnownVectors
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, DataError
from rag.core.files import directory_lock, link_or_copy
from rag.core.types import Passage

_PASSAGES_AT_ONCE = 1024
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
            if index.tokens is not None:
                raise ConfigError(
                    f"{place} has a vector per token (index type plaid), which cannot be updated",
                    hint="build it again with --overwrite; other index types can be updated",
                )
            report = UpdateReport(index.version)
            ledger, listed = BuildLedger(place, UPDATING_DIR, replaces=True), DocumentList()
            passages = _next_passages(index, changes, listed, report, max_deleted_share)
            store = build_passages(passages, ledger, _source_of(index), listed)
            if _is_equal(index, ledger):
                ledger.discard()
            else:
                report.version = _build(index, store, ledger, encoder, report)
        remove_unused(place)
    return report


def _source_of(index: Index) -> dict[str, Any] | None:
    """What the passages are from: a later build sees that the files are not those of the first one."""
    return {**index.source, **({"files": "updated"} if "files" in index.source else {})} or None


def _next_passages(
    index: Index,
    changes: Callable[[DocumentEntries], Iterable[Change]],
    listed: DocumentList,
    report: UpdateReport,
    max_deleted_share: float,
) -> Iterator[Passage]:
    """The passages of the next version, whose documents are listed and counted while they are read."""
    known, seen, run = index.documents, set[str](), range(0)
    for change in changes(known):
        if change.id in seen:
            raise DataError(f"the document {change.id!r} comes twice", hint="make the ids unique")
        seen.add(change.id)
        old = known.get(change.id)
        rows = range(0) if old is None else range(old.first, old.first + old.passages)
        put = None if isinstance(change, Unchanged) else change
        if (entry := put or old) is None:
            raise DataError(f"there is no document {change.id!r} to keep")
        count = len(rows) if put is None else len(put.passages)
        listed.append(entry.id, entry.digest, passages=count, sent=entry.sent)
        if put is None or (old is not None and index.passages.get_many(rows) == put.passages):
            report.kept += 1
            if rows.start != run.stop:  # neighbours are read together
                yield from _read_rows(index, run)
                run = range(rows.start, rows.start)
            run = range(run.start, rows.stop)
            continue
        report.added += old is None
        report.replaced += old is not None
        report.passages += count
        yield from _read_rows(index, run)
        run = range(0)
        yield from put.passages
    yield from _read_rows(index, run)
    report.deleted = len(known.keys() - seen)
    if report.deleted > max_deleted_share * len(known):
        raise DataError(
            f"{report.deleted:,} of the {len(known):,} documents in {index.directory} would be deleted "
            f"(limit {max_deleted_share:.0%})",
            hint="check that the corpus is the one of this index, or raise --max-deleted-share",
        )


def _read_rows(index: Index, rows: range) -> Iterator[Passage]:
    batches = index.passages.batches(_PASSAGES_AT_ONCE, start=rows.start, stop=rows.stop)
    return chain.from_iterable(batches)


def _is_equal(index: Index, ledger: BuildLedger) -> bool:
    """Whether passages and list of documents are those that the index has."""
    files = {name: file for name, file in index.manifest["files"].items() if name.startswith("passages/")}
    return ledger.files("passages") == files


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


def _build(
    index: Index, store: PassageStore, ledger: BuildLedger, encoder: OpenEncoder, report: UpdateReport
) -> str:
    """Build the next version over its passages and make it the index; returns its version."""
    settings = settings_of_stages(index.manifest)
    if (old := index.embeddings) is None:
        build_stages(settings.stages, store, ledger, None, settings)
        return ledger.commit(settings.stages)
    known = KnownVectors([(index.passages, old)])

    def encode(place: Path, *args: Any, **options: Any) -> EmbeddingShards:
        place.mkdir(parents=True, exist_ok=True)
        if not (probes := place / PROBES_NAME).exists():  # they stay questions of the same kind
            link_or_copy(old.directory / PROBES_NAME, probes)
        return known.encode(place, *args, **options)

    build_stages(settings.stages, store, ledger, _LazyEncoder(index, encoder), settings, encode)
    report.reused = max(0, known.reused - (len(store) - report.passages))
    return ledger.commit(settings.stages)
