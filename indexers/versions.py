"""Write the next version of an index: a segment of new passages, lists of rows and documents, a manifest."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from indexers.build import (
    BM25_DIR,
    INDEX_KIND,
    PASSAGES_DIR,
    SEGMENTS_DIR,
    VERSIONS_DIR,
    build_index,
    manifest_checksum,
    write_index_manifest,
)
from indexers.changes import Change, Known, Put
from indexers.documents import DOCUMENTS_NAME, DocumentEntry, DocumentTable
from indexers.exact import exact_search
from indexers.faiss_index import RECALL_KS, recall_at
from indexers.index import Index
from indexers.ledger import StageLedger
from indexers.lucene import build_bm25
from indexers.passage_writer import passages_digest
from indexers.passages import PassageStore
from indexers.probes import read_probes
from indexers.protocols import EncoderIdentity, PassageEncoder
from indexers.provenance import documents_of_index, settings_of_index
from indexers.reuse import KnownVectors
from indexers.segments import ROWS_NAME, LiveRows, OpenSegments, open_segments
from indexers.settings import STAGES, BuildSettings
from rag.core.arrays import Int64
from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.files import clean_directory, fsync_path
from rag.core.log import get_logger
from rag.core.manifest import (
    LEDGER_NAME,
    NEWEST_VERSION,
    file_table,
    read_manifest,
    version_of,
    write_manifest,
)
from rag.core.npy import save_npy
from rag.core.types import Passage

MOST_SEGMENTS, MOST_DELETED = 8, 0.25  # with more, segments are merged
OpenEncoder = Callable[[EncoderIdentity], PassageEncoder]
_log = get_logger(__name__)


@dataclass(slots=True)
class UpdateReport:
    """Result of an update.

    Attributes:
        version: version of the index afterwards.
        added, replaced, deleted, kept: numbers of documents.
        passages: number of passages of the documents added and replaced.
        reused: number of these passages whose vector was stored already.
        merged: number of segments that were merged afterwards.
    """

    version: str
    added: int = 0
    replaced: int = 0
    deleted: int = 0
    kept: int = 0
    passages: int = 0
    reused: int = 0
    merged: int = 0

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


@dataclass(slots=True)
class _Placed:
    """A document, the segment that holds its passages (an index into a list), and the first row there."""

    entry: DocumentEntry
    segment: int
    first: int


class VersionWriter:
    """Writes the next version of an open index; the caller has its lock.

    Args:
        encoder: opens the encoder of the index; called only if passages have to be encoded.
    """

    def __init__(self, index: Index, encoder: OpenEncoder) -> None:
        self.index, self.encoder = index, encoder
        self.place, self.manifest = self.index.directory, self.index.manifest
        folders = self.manifest.get("folders", {})
        self.segments: list[str] = list(folders.get("segments", ["."]))
        n_passages = len(index.passages)
        self.live = index.live or LiveRows(np.arange(n_passages), [n_passages])
        self.number = int(self.manifest.get("update", 0)) + 1
        self.settings = settings_of_index(self.place, self.manifest["stages"])
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        """Remove what this version does not need; a segment that was begun stays, to be continued."""
        if "folders" not in self.manifest:
            needed = {self._segment_name()}
        else:
            folders = self.manifest["folders"]
            needed = {
                *self.segments,
                folders["version"],
                str(Path(folders["bm25"]).parent),
                self._segment_name(),
            }
            if "." not in self.segments:
                for name in STAGES[:-1]:
                    shutil.rmtree(self.place / name, ignore_errors=True)
            if folders["bm25"] != BM25_DIR:
                shutil.rmtree(self.place / BM25_DIR, ignore_errors=True)
        for parent in (SEGMENTS_DIR, VERSIONS_DIR):
            clean_directory(self.place / parent)
            for path in (self.place / parent).iterdir():
                if f"{parent}/{path.name}" not in needed:
                    shutil.rmtree(path, ignore_errors=True)

    def _segment_name(self) -> str:
        return f"{SEGMENTS_DIR}/{self.number:06d}"

    def _row(self, entry: DocumentEntry) -> int:
        """The first row of a document in the index."""
        return self.live.row_of(entry.first) if entry.passages else 0

    def _rows(self, entries: Iterable[DocumentEntry]) -> Int64:
        parts = [np.arange(entry.passages) + self._row(entry) for entry in entries]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _placed(self, entry: DocumentEntry) -> _Placed:
        segment = int(self.live.segments(np.array([entry.first]))[0]) if entry.passages else 0
        return _Placed(entry, segment, entry.first - int(self.live.bounds[segment]))

    def update(self, changes: Callable[[Known], Iterable[Change]], max_deleted_share: float) -> UpdateReport:
        """See `indexers.update.update_index`."""
        known = documents_of_index(self.index).entries
        report, new, placed = UpdateReport(self.index.version), list[Passage](), dict[str, _Placed]()
        replaced: list[DocumentEntry] = []
        for change in changes(known):
            if change.id in placed:
                raise DataError(f"the document {change.id!r} comes twice", hint="make the ids unique")
            old = known.get(change.id)
            if isinstance(change, Put):
                same = old if old is not None and self._has(old, change.passages) else None
                if same is None:
                    if old is None:
                        report.added += 1
                    else:
                        report.replaced += 1
                        replaced.append(old)
                    entry = DocumentEntry(change.id, change.digest, len(change.passages), 0, change.sent)
                    placed[change.id] = _Placed(entry, len(self.segments), len(new))
                    new += change.passages
                    continue
                old = replace(same, digest=change.digest, sent=change.sent)
            if old is None:
                raise DataError(f"there is no document {change.id!r} to keep")
            report.kept += 1
            placed[change.id] = self._placed(old)
        gone = [entry for id, entry in known.items() if id not in placed]
        report.deleted, report.passages = len(gone), len(new)
        self._refuse_emptying(len(gone), len(known), max_deleted_share)
        if not report.is_changed and [one.entry for one in placed.values()] == list(known.values()):
            return report
        segments = list(self.segments)
        if new:
            leaving = self._rows([*replaced, *gone])
            self._refuse_taken_ids(new, leaving)
            report.reused = self._build_segment(new, leaving)
            segments.append(self._segment_name())
        report.version = self._commit(segments, list(placed.values()))
        return report

    def _refuse_emptying(self, deleted: int, known: int, max_deleted_share: float) -> None:
        if deleted > max_deleted_share * known:
            raise DataError(
                f"{deleted:,} of the {known:,} documents in {self.place} would be deleted "
                f"(limit {max_deleted_share:.0%})",
                hint="check that the corpus is the one of this index, or raise --max-deleted-share",
            )

    def _refuse_taken_ids(self, new: list[Passage], leaving: Int64) -> None:
        """Refuse passages with the id of one that stays; `leaving`: the rows that do not."""
        is_leaving = np.zeros(len(self.index.passages), bool)
        is_leaving[leaving] = True
        rows = {passage.id: self.index.passages.row_of(passage.id) for passage in new}
        taken = [id for id, row in rows.items() if row is not None and not is_leaving[row]]
        if taken:
            raise DataError(
                f"{len(taken)} new passages have the id of one that another document in {self.place} has: "
                f"{', '.join(map(repr, taken[:3]))}",
                hint="give the new documents other ids, or delete the documents that have these passages",
            )

    def _has(self, entry: DocumentEntry, passages: list[Passage]) -> bool:
        """Whether a document has these passages already."""
        return entry.passages == len(passages) and (
            self.index.passages.get_many(self._rows([entry])) == passages
        )

    def _build_segment(self, new: list[Passage], known: Int64) -> int:
        """Write a segment; returns the number of vectors that came from rows `known` of the index."""
        place = self.place / self._segment_name()
        if not self.settings.has_dense:
            stages = self.settings.replaced(retriever="bm25")
            self._build(new, place, None, stages, "passages")
            write_index_manifest(place, StageLedger(place))
            return 0
        identity = self.index.encoder_identity
        assert identity is not None
        vectors = KnownVectors.of_rows(self.encoder(identity), self.index, known)
        self.index.check_encoder(vectors.identity)
        is_exact = self.settings.index_type == "flat"
        dense = self.settings.replaced(retriever="dense", probes=1 if is_exact else self.settings.probes)
        self._build(new, place, vectors, dense, None)
        return vectors.reused

    def _build(
        self,
        new: list[Passage],
        place: Path,
        encoder: PassageEncoder | None,
        settings: BuildSettings,
        until: Any,
    ) -> None:
        try:
            build_index(new, place, encoder=encoder, settings=settings, until=until)
        except MismatchedArtifactError:  # begun by an update with other passages
            build_index(new, place, encoder=encoder, settings=settings, until=until, overwrite=True)

    def _commit(self, segments: list[str], placed: list[_Placed]) -> str:
        """Write the lists of rows and documents, BM25 and the manifest; returns the version."""
        used = sorted({one.segment for one in placed if one.entry.passages})
        if not used:
            raise DataError(
                "no passage would be left in the index", hint="delete the folder if it is not needed any more"
            )
        segments, renumbered = [segments[old] for old in used], {old: new for new, old in enumerate(used)}
        places = [self.place / name for name in segments]
        starts = np.cumsum([0, *(len(PassageStore.open(place / PASSAGES_DIR)) for place in places)]).tolist()
        table = DocumentTable()
        for one in placed:
            first = starts[renumbered[one.segment]] + one.first if one.entry.passages else 0
            table.entries[one.entry.id] = replace(one.entry, first=first)
        version = f"{VERSIONS_DIR}/{self.number:06d}"
        folder = self.place / version
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rows = table.rows()
        save_npy(folder / ROWS_NAME, rows)
        table.write(folder / DOCUMENTS_NAME)
        opened = open_segments(places, rows, has_dense=self.settings.has_dense)
        count, sha256 = passages_digest(opened.passages)
        manifest: dict[str, Any] = {
            "format_version": NEWEST_VERSION,
            "kind": INDEX_KIND,
            "metric": self.manifest["metric"],
            "stages": self.manifest["stages"],
            "update": self.number,
            "passages": {"count": count, "sha256": sha256},
            **self._describe_dense(opened),
        }
        folders: dict[str, Any] = {"version": version, "segments": segments, "bm25": ""}
        if self.settings.has_bm25:
            folders["bm25"], manifest["bm25"] = self._bm25(opened, folder, sha256)
        manifest["folders"] = folders
        manifest["files"] = dict(sorted(self._files(segments, version, folders["bm25"]).items()))
        for parent in (folder, self.place / VERSIONS_DIR, self.place / SEGMENTS_DIR):
            fsync_path(parent)
        manifest["checksum"] = manifest_checksum(manifest)
        write_manifest(self.place, manifest)
        return version_of(manifest)

    def _describe_dense(self, opened: OpenSegments) -> dict[str, Any]:
        if opened.embeddings is None or opened.dense is None:
            return {}
        dense = {**self.manifest["dense"], "rows": len(opened.live)}
        if dense["index_type"] != "flat":
            probes = read_probes(opened.embeddings)
            truth, _ = exact_search(opened.embeddings, probes, min(max(RECALL_KS), len(opened.live)))
            dense["recall"] = {str(k): round(recall_at(opened.dense, probes, truth, k), 4) for k in RECALL_KS}
            if dense["recall"]["100"] < dense["recall_target"]:
                _log.warning(
                    "recall@100 is %.3f after the update, the target is %.3f; to reach it, build the index "
                    "again with --reuse",
                    dense["recall"]["100"], dense["recall_target"],
                )  # fmt: skip
        return {
            "embeddings": {**self.manifest["embeddings"], "rows": len(opened.live)},
            "dense": dense,
            "encoder": self.manifest["encoder"],
        }

    def _bm25(self, opened: OpenSegments, folder: Path, sha256: str) -> tuple[str, dict[str, Any]]:
        """Folder and description of BM25 over all passages; built anew unless they are the same as before.

        Lucene's statistics count deleted documents, so that scores after deletions would be others.
        """
        if sha256 == self.manifest["passages"]["sha256"]:
            return self.manifest.get("folders", {}).get("bm25", BM25_DIR), self.manifest["bm25"]
        threads = self.settings.threads or os.cpu_count() or 1
        info = build_bm25(
            opened.passages, folder / BM25_DIR, k1=self.settings.k1, b=self.settings.b, threads=threads
        )
        return f"{folder.parent.name}/{folder.name}/{BM25_DIR}", info

    def _files(self, segments: list[str], version: str, bm25: str) -> dict[str, Any]:
        """Sizes and checksums; those of files that were there are taken from manifests."""
        known, table = self.manifest["files"], dict[str, Any]()
        for segment in segments:
            if segment == ".":
                table |= {name: known[name] for name in known if name.split("/")[0] in STAGES[:-1]}
                continue
            of_segment = read_manifest(self.place / segment)["files"]
            table |= {f"{segment}/{name}": entry for name, entry in of_segment.items()}
        present = [path for path in (self.place / version).rglob("*") if path.is_file()]
        table |= file_table(self.place, [path.relative_to(self.place).as_posix() for path in present])
        if bm25:
            table |= {name: known[name] for name in known if name.startswith(f"{bm25}/")}
        return table | {LEDGER_NAME: known[LEDGER_NAME]}

    def merge(self) -> int:
        """See `indexers.update.merge_segments`."""
        sizes = np.diff(self.live.bounds)
        if len(self.live) < (1 - MOST_DELETED) * sizes.sum():
            chosen = set(range(len(sizes)))
        elif len(sizes) > MOST_SEGMENTS:
            chosen = {segment for segment, size in enumerate(sizes) if size <= sizes.sum() / 2}
        else:
            return 0
        placed = [self._placed(entry) for entry in documents_of_index(self.index).entries.values()]
        moved = [one for one in placed if one.segment in chosen and one.entry.passages]
        rows = self._rows(one.entry for one in moved)
        self._build_segment(self.index.passages.get_many(rows), rows)
        first = 0
        for one in moved:
            one.segment, one.first = len(self.segments), first
            first += one.entry.passages
        self._commit([*self.segments, self._segment_name()], placed)
        return len(chosen)
