"""Write an index: passages → embeddings → FAISS (or token vectors) → Lucene → manifest.

One function writes a new index, extends one, and writes the next version of one. A version takes
over what did not change of the version that it starts from: vectors by passage, whole files by hard
links. Nothing that readers use is changed: a crash leaves the old version or the new one, and a
process that has the old one open goes on with it.

Every stage is resumable: finished shards are kept, an interrupted stage continues behind them, and
the manifest is written last. All files have the same bytes however often the build was
interrupted, except Lucene's files and the manifest's entries for these.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from indexers.documents import DocumentEntry, Documents, Put, writing_documents
from indexers.embeddings import (
    PROBES_NAME,
    EmbeddingShards,
    ShardLayout,
    encode_corpus,
    read_probes,
    save_probes,
)
from indexers.faiss_build import build_faiss
from indexers.faiss_types import create_faiss, preset_for
from indexers.index import Index
from indexers.ledger import BuildLedger, remove_unused
from indexers.lucene import build_bm25
from indexers.manifest import Manifest
from indexers.passage_writer import passages_digest, writing_passages
from indexers.passages import PassageStore
from indexers.protocols import (
    EncoderIdentity,
    EncodesCorpus,
    PassageEncoder,
    ReportsProgress,
    TokenEncoder,
    TokenVectors,
)
from indexers.reuse import check_vectors
from indexers.rights import Rights, change_rights, copy_rights, read_rights
from indexers.settings import STAGES, BuildSettings, StageName
from indexers.shards import Stored, match_passages
from indexers.token_build import build_tokens
from indexers.token_codec import BITS
from indexers.token_files import TokenShards
from rag.core.arrays import Float32, Int64
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError, ResourceError
from rag.core.files import (
    TEMPORARY_MARK,
    directory_lock,
    disk_errors,
    fingerprint,
    link_or_copy,
)
from rag.core.log import Progress
from rag.core.manifest import (
    BUILDING_DIR,
    DATA_PREFIX,
    MANIFEST_NAME,
    PROMISE_NAME,
    RIGHTS_DIR,
    RIGHTS_LOCK,
    UPDATING_DIR,
    UPLOADS_DIR,
    VERDICT_PROMISE_NAME,
)
from rag.core.types import Groups, Passage
from rag.data.languages import ENGLISH
from rag.data.metadata import GROUPS_FIELD, groups_of

Change = Passage | Put | DocumentEntry
Encoder = PassageEncoder | TokenEncoder
OpenEncoder = Callable[[EncoderIdentity], Encoder]

_OWN_FILES = {
    *(MANIFEST_NAME, ".lock", BUILDING_DIR, UPDATING_DIR, UPLOADS_DIR),
    *(RIGHTS_DIR, RIGHTS_LOCK, PROMISE_NAME, VERDICT_PROMISE_NAME),
}


@dataclass(frozen=True, slots=True)
class Content:
    """What an index is to hold.

    Attributes:
        documents: in order: `Put` for a document that is new or changed, an entry of
            `start_from.documents` of `write_index` for one that stays, a passage for a document of
            its own; None: all of `start_from`.
        source: identifies the passages: documents that are stored already are not read again.
            Without it a rerun compares their checksum.
        language: decides how BM25 finds words, and is written into the manifest; None: that of the
            index, or English.
        folder_groups: document id → groups that its folder states; may be filled while `documents`
            are read. None keeps those of the index.
        notes: called once `documents` are read; returns what users are to know of them.
    """

    documents: Iterable[Change] | None
    source: Mapping[str, object] | None = None
    language: str | None = None
    folder_groups: Mapping[str, Groups] | None = None
    notes: Callable[[], Sequence[str]] = tuple

    @classmethod
    def of(cls, content: Content | Iterable[Change] | None) -> Content:
        """The content that bare documents are."""
        return content if isinstance(content, Content) else cls(content)


@dataclass(slots=True)
class WriteReport:
    """What was written.

    Attributes:
        directory: the index.
        version: its version afterwards.
        added, replaced, deleted, kept: numbers of documents, against the version that it starts
            from.
        passages: number of passages of the documents added and replaced.
        reused: number of these passages whose vector was stored already.
        notes: what `Content.notes` returned in an interrupted run that this run continues; empty if
            this run has read the documents itself.
    """

    directory: Path
    version: str = ""
    added: int = 0
    replaced: int = 0
    deleted: int = 0
    kept: int = 0
    passages: int = 0
    reused: int = 0
    notes: Sequence[str] = ()

    @property
    def is_changed(self) -> bool:
        """Whether any document has changed."""
        return bool(self.added or self.replaced or self.deleted)

    def __str__(self) -> str:
        if not self.is_changed:
            return f"{self.kept:,} documents, none changed"
        names = ("added", "replaced", "deleted", "kept")
        counts = ", ".join(f"{getattr(self, name):,} {name}" for name in names)
        vectors = f", of which {self.reused:,} had their vectors" if self.reused else ""
        return f"documents: {counts}; passages written: {self.passages:,}{vectors}"


@dataclass
class _LazyEncoder:
    """The encoder of an index, opened when the first passage has to be encoded."""

    directory: Path
    identity: EncoderIdentity
    open_encoder: OpenEncoder

    @cached_property
    def _encoder(self) -> Any:
        encoder = self.open_encoder(self.identity)
        self.identity.check(self.directory, encoder.identity)
        return encoder

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """See `PassageEncoder`."""
        return self._encoder.encode_passages(titles, texts)

    def reporting(self, done: Callable[[int], None]) -> PassageEncoder:
        """See `ReportsProgress`; an encoder that reports none is returned as it is."""
        encoder: PassageEncoder = self._encoder
        return encoder.reporting(done) if isinstance(encoder, ReportsProgress) else encoder

    def passage_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> TokenVectors:
        """See `TokenEncoder`."""
        return self._encoder.passage_tokens(titles, texts)


def update_index(
    directory: str | Path,
    changes: Callable[[Documents], Content | Iterable[Change]],
    open_encoder: OpenEncoder,
    *,
    max_deleted_share: float = 1.0,
) -> WriteReport:
    """Write the next version of an index with its encoder and settings; see `write_index`.

    Args:
        changes: function from the documents of the index to those of its next version, whose source
            and language are those of the index.
        open_encoder: opens the encoder of the index; called only if passages have to be encoded.
    """
    # A link may be pointed elsewhere while the version is written.
    directory = Path(directory).resolve()
    with Index.open(directory) as index:
        identity = index.encoder_identity
        encoder = None
        if identity is not None:
            encoder = _LazyEncoder(directory, identity, open_encoder)
        source = dict(index.manifest.source)
        if "files" in source:
            # A later build sees that the files are not those of the first build.
            source["files"] = "updated"
        report = write_index(
            directory,
            replace(Content.of(changes(index.documents)), source=source or None, language=None),
            settings=index.manifest.settings,
            encoder=encoder,
            start_from=index,
            max_deleted_share=max_deleted_share,
        )
    # The previous version was open until here. A writer that has the lock by now removes it.
    with suppress(ResourceError), directory_lock(directory):
        remove_unused(directory)
    return report


def write_index(
    directory: str | Path,
    content: Content | Iterable[Change] | None,
    *,
    settings: BuildSettings | None = None,
    encoder: Encoder | None = None,
    start_from: Index | None = None,
    overwrite: bool = False,
    max_deleted_share: float = 1.0,
    encode: EncodesCorpus = encode_corpus,
) -> WriteReport:
    """Write an index directory, or continue a build that was interrupted.

    Without `start_from`, a new index is built.

    The metadata field `groups` names who may read a document. It goes into the rights of the index,
    and is no metadata of its passages; a document that comes again without it keeps its groups.

    Args:
        directory: the index; made if missing.
        content: what the index is to hold; its documents alone are enough, and None stands for those
            of `start_from`, which is then needed.
        settings: of the index; None: the defaults.
        encoder: makes the vectors; needed unless the retriever is bm25.
        start_from: version whose documents and vectors are taken over. If it is the index in
            `directory`, its next version is written; if another, a new index that takes over its
            vectors. The encoders may then differ in their question towers.
        overwrite: ignore an index that is in `directory`.
        max_deleted_share: highest share (0 … 1) of the documents that may be deleted.
        encode: encodes the passages that have no stored vector, into shards.

    Raises:
        ConfigError: no encoder, or `start_from` lacks such vectors.
        DataError: no passages, duplicate ids, vectors that are not finite, too much is deleted.
        MismatchedArtifactError: `directory` holds a build with other inputs or settings, or
            `start_from` has vectors of another encoder.
        ResourceError: the disk is full, or another process writes into `directory`.

    Example:
        >>> import tempfile
        >>> settings = BuildSettings(retriever="bm25")
        >>> passages = [Passage("a", "Vienna", "Vienna lies on the Danube.")]
        >>> report = write_index(tempfile.mkdtemp(), passages, settings=settings)
        >>> with Index.open(report.directory) as index:
        ...     index.lucene.search(["danube"], 3)[0][0][0]
        0
    """
    settings = settings or BuildSettings()
    directory = Path(directory)
    if settings.has_encoder and encoder is None:
        raise ConfigError(
            f"retriever {settings.retriever!r} needs an encoder",
            hint="pass one, or choose retriever bm25",
        )
    if directory.is_dir():
        # Before the lock, which adds a file.
        _refuse_foreign_files(directory)
    is_update = start_from is not None and start_from.directory.resolve() == directory.resolve()
    with directory_lock(directory):
        with disk_errors(directory):
            ledger = BuildLedger(directory, is_update=is_update, overwrites=overwrite)
        writer = _IndexWriter(
            Content.of(content),
            settings,
            encoder,
            start_from,
            ledger,
            max_deleted_share,
            encode,
            WriteReport(directory),
        )
        return writer.write()


@dataclass(slots=True)
class _IndexWriter:
    """Writes the stages of one index; the caller has the lock of the directory.

    Attributes:
        start: version whose documents and vectors are taken over, if any.
        report: counts of documents and passages, so far.
        earlier_rows: (N,) row of each passage in `start`; -1 where its vectors are not taken over.
        stored_tokens: token vectors of `start`, if they can be taken over.
        kept_passages: number of passages of documents that stay.
    """

    content: Content
    settings: BuildSettings
    encoder: Encoder | None
    start: Index | None
    ledger: BuildLedger
    max_deleted_share: float
    encode: EncodesCorpus
    report: WriteReport
    earlier_rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    stored_tokens: TokenShards | None = None
    kept_passages: int = 0

    @property
    def _keeps_corpus(self) -> bool:
        """Whether the index goes on from the documents of `start`, not from its vectors alone."""
        return self.ledger.is_update or self.content.documents is None

    def write(self) -> WriteReport:
        """Write all stages and the manifest; see `write_index`."""
        ledger = self.ledger
        report = self.report
        start = self.start
        documents = self.content.documents
        self._check_resumed()
        if start is not None:
            self._reuse_from(start, with_passages=documents is None)
        previous = ledger.existing
        if previous is None and start is not None and self._keeps_corpus:
            previous = start.manifest
        language = self.content.language
        if language is None and previous is not None:
            language = previous.language
        if documents is not None:
            self._write_passages(documents)
        stored = ledger.stage("passages")
        if ledger.is_update and previous and previous.stage("passages").files == stored.files:
            # No document differs: the index stays as it is.
            shutil.rmtree(ledger.folder)
            report.version = previous.version
            return report
        passages = PassageStore(ledger.path("passages"))
        if not ledger.is_update:
            self._count_of_build(len(passages))
        if start is not None and self.settings.has_encoder:
            self.earlier_rows = match_passages(passages, start.passages)
        inputs = {"passages": stored.output}
        if self.settings.has_dense:
            encoder = cast("PassageEncoder", self.encoder)
            self._write_embeddings(passages, inputs, encoder)
            self._write_dense()
        if self.settings.has_tokens:
            self._write_tokens(passages, inputs, cast("TokenEncoder", self.encoder))
        if "bm25" in self.settings.stages:
            self._write_bm25(passages, inputs, language)
        extra_keys = (previous and previous.model_extra) or {}
        finished = ledger.existing or ledger.commit(self.settings, language, extra_keys)
        report.version = finished.version
        if report.passages and self.settings.has_encoder:
            taken_over = int((self.earlier_rows >= 0).sum())
            # Where centroids are trained anew, nothing is taken over, nor for kept passages.
            report.reused = taken_over - self.kept_passages if taken_over else 0
        return report

    def _count_of_build(self, n_passages: int) -> None:
        """Count the documents of an index that is no update: all are new, or all are as they were."""
        n_documents = len(Documents(self.ledger.path("passages")))
        is_as_it_was = self.ledger.existing is not None or self.content.documents is None
        if is_as_it_was:
            self.report.kept = n_documents
        else:
            self.report.added = n_documents
            self.report.passages = n_passages

    def _check_resumed(self) -> None:
        """Refuse to go on with a build or an index of other parts, or of another encoder."""
        ledger = self.ledger
        wanted = set(self.settings.stages)
        begun = {stage for stage in STAGES if ledger.stage(stage).inputs}
        # A build that was begun may still make what it lacks, a finished index may have more.
        conflicting = begun - wanted if ledger.existing is None else wanted - begun
        if conflicting:
            raise MismatchedArtifactError(
                f"{ledger.directory} holds {_names_of(begun)}, this build makes {_names_of(wanted)}",
                hint="choose another {out} ({reuse} takes vectors over), or add {overwrite}",
                arguments=("out", "reuse", "overwrite"),
            )
        if self.encoder is not None and self.settings.has_encoder:
            if ledger.state.encoder is not None:
                ledger.state.encoder.check(ledger.directory, self.encoder.identity)
            ledger.state.encoder = self.encoder.identity

    def _reuse_from(self, start: Index, *, with_passages: bool) -> None:
        """Offer the stages of `start` to the ledger, and copy its rights into a new index.

        Args:
            with_passages: the passages stay the same, so that their stage is offered too.

        Raises:
            MismatchedArtifactError: it has vectors of another encoder, or was written by a program
                that knows more.
            ResourceError: another process has changed it.
        """
        is_update = self.ledger.is_update
        if is_update and Manifest.read(start.directory).version != start.version:
            raise ResourceError(
                f"{start.directory} was changed by another process", hint="try again"
            )
        unknown = sorted(start.manifest.model_extra or {})
        if unknown and not is_update and not with_passages:
            raise MismatchedArtifactError(
                f"the manifest of {start.directory} has {', '.join(unknown)}, which this version "
                "of the program does not know",
                hint="upgrade the program, or build without the vectors of that index",
            )
        if self.settings.has_dense:
            passage_encoder = cast("PassageEncoder", self.encoder)
            check_vectors(start, passage_encoder, self.settings, with_passages=with_passages)
        identity = start.encoder_identity
        if self.settings.has_tokens and start.tokens is not None and identity is not None:
            encoder = cast("TokenEncoder", self.encoder)
            if not identity.differences(encoder.identity):
                self.stored_tokens = start.tokens.shards
        if not is_update:
            copy_rights(start.directory, self.ledger.directory)
        if self.ledger.existing is None:
            stages = dict(start.manifest.stages)
            if not with_passages:
                del stages["passages"]
            self.ledger.reuse_from(start.data, stages)

    def _write_passages(self, changes: Iterable[Change]) -> None:
        """Store passages and documents; if they are stored and no source identifies them, compare."""
        documents = self._documents(changes)
        source = self.content.source
        stored = self.ledger.stage("passages").output
        if source is not None or not stored:
            # In the form in which an interrupted run finds it in the ledger's file.
            described = json.loads(json.dumps(source, sort_keys=True, default=str))
            folder = self.ledger.begin("passages", {"source": described})
            if folder is None:
                # Of the interrupted run, which has read the documents.
                self.report.notes = self.ledger.state.notes
                return
            output = _store(documents, folder)
            self.ledger.state.notes = list(self.content.notes())
            self.ledger.finish("passages", output)
            return
        passages = chain.from_iterable(put.passages for put in documents)
        count, sha256 = passages_digest(passages)
        if stored != {"count": count, "sha256": sha256}:
            raise MismatchedArtifactError(
                f"{self.ledger.directory} holds {stored['count']} other passages, now {count} came",
                hint="choose another {out}, or add {overwrite}",
                arguments=("out", "overwrite"),
            )

    def _documents(self, changes: Iterable[Change]) -> Iterator[Put]:
        """The documents of the new version, without their groups.

        Counts those of an update in the report as they are read; after the last, writes their
        groups.

        Raises:
            DataError: more than `max_deleted_share` of the earlier documents are gone.
        """
        report = self.report
        start = self.start
        read_passages = None if start is None else start.passages.in_order()
        rights = read_rights(self.ledger.directory)[0]
        stated_groups = dict[str, Groups]()
        reread_ids = set[str]()
        for change in changes:
            entry = change if isinstance(change, DocumentEntry) else None
            if start is not None and self.ledger.is_update and entry is None:
                entry = start.documents.find(change.id)
            stored = [] if read_passages is None or entry is None else read_passages(entry.rows)
            put, groups = _without_groups(_as_put(change, stored))
            if groups:
                stated_groups[put.id] = groups
            if put.id in rights.folders:
                reread_ids.add(put.id)
            if self.ledger.is_update:
                self._compare(put, entry, stored)
            yield put
        if start is not None and self.ledger.is_update:
            total = len(start.documents)
            report.deleted = total - report.kept - report.replaced
            if report.deleted > self.max_deleted_share * total:
                raise DataError(
                    f"{report.deleted:,} of the {total:,} documents in {report.directory} would be "
                    f"deleted (limit {self.max_deleted_share:.0%})",
                    hint="check that the corpus is the one of this index, or raise "
                    "{max_deleted_share}",
                    arguments=["max_deleted_share"],
                )
        # The stage is not finished yet: a killed run writes the groups again, and nobody searches new
        # documents without them.
        self._write_rights(stated_groups, reread_ids)

    def _compare(self, put: Put, entry: DocumentEntry | None, stored: list[Passage]) -> None:
        """Count a document of an update as kept, replaced or added.

        Args:
            entry: the document with its id in the earlier version, which has the passages `stored`.
        """
        report = self.report
        if entry is not None and put.passages == stored:
            report.kept += 1
            self.kept_passages += len(stored)
            return
        report.added += entry is None
        report.replaced += entry is not None
        report.passages += len(put.passages)

    def _write_rights(
        self, stated_groups: Mapping[str, Groups], reread_ids: Collection[str]
    ) -> None:
        """Write the groups of documents.

        Args:
            stated_groups: document id → groups that the document's metadata names.
            reread_ids: documents that had groups of a folder, which those that the content states,
                if any, replace.
        """
        folder_groups = self.content.folder_groups

        def change(rights: Rights) -> Rights:
            if folder_groups is not None:
                folders = {id: rights.folders[id] for id in rights.folders if id not in reread_ids}
                folders |= {id: tuple(sorted(names)) for id, names in folder_groups.items()}
                rights = rights.model_copy(update={"folders": folders})
            return rights.stating(stated_groups)

        change_rights(self.ledger.directory, change)

    def _write_embeddings(
        self,
        passages: PassageStore,
        inputs: Mapping[str, object],
        encoder: PassageEncoder,
    ) -> None:
        """Encode the passages, one shard per call, so that the encoder can sort them by length."""
        settings = self.settings
        identity = encoder.identity
        if identity.pooling == "tokens":
            raise ConfigError(
                f"{identity.name} makes one vector per token, type {settings.index_type} needs one "
                "per passage",
                hint="build it with `rag index … --index-type plaid`",
            )
        if settings.index_type != "flat":
            # A type that cannot be built is refused before hours of encoding.
            create_faiss(preset_for(settings.index_type, len(passages), identity.dim), identity.dim)
        stage_settings = {
            "encoder": identity.comparable(),
            "dtype": settings.stored_dtype,
            "shard_rows": settings.shard_rows,
            "probes": settings.probes,
            "seed": settings.seed,
        }
        folder = self.ledger.begin("embeddings", {**inputs, **stage_settings})
        if folder is None:
            return
        probes = folder / PROBES_NAME
        options: dict[str, Any] = {"shard_rows": settings.shard_rows}
        if self.start is not None:
            vectors = self.start.require_dense().embeddings
            options["stored"] = Stored(vectors, self.earlier_rows)
            if self._keeps_corpus and not probes.exists():
                # The probes of the next version are questions of the same kind.
                folder.mkdir(exist_ok=True)
                link_or_copy(vectors.directory / PROBES_NAME, probes)
        shards = self.encode(folder, passages, encoder, settings.stored_dtype, **options)
        if not probes.exists():
            save_probes(folder, passages, encoder, settings.probes, settings.seed)
        self.ledger.finish("embeddings", asdict(shards.layout))

    def _write_dense(self) -> None:
        """Write the FAISS index over finished embeddings, measured on the probes; needs no encoder."""
        settings = self.settings
        stored = self.ledger.stage("embeddings")
        stage_settings: dict[str, Any] = {
            "index_type": settings.index_type,
            "recall_target": settings.tuned_recall,
            "seed": settings.seed,
        }
        files = stored.model_dump()["files"]
        inputs = {"embeddings": fingerprint(files)[:16], **stage_settings}
        folder = self.ledger.begin("dense", inputs)
        if folder is None:
            return
        layout = ShardLayout(**stored.output)
        embeddings = EmbeddingShards.open(self.ledger.path("embeddings"), layout)
        probes = read_probes(embeddings)
        info = build_faiss(
            embeddings, folder, probes=probes, threads=settings.threads, **stage_settings
        )
        self.ledger.finish("dense", info.model_dump(exclude_none=True))

    def _write_tokens(
        self, passages: PassageStore, inputs: Mapping[str, object], encoder: TokenEncoder
    ) -> None:
        settings = self.settings
        stage_settings: dict[str, Any] = {"shard_rows": settings.shard_rows, "seed": settings.seed}
        identity = encoder.identity.comparable()
        inputs = {**inputs, "encoder": identity, "bits": BITS, **stage_settings}
        # The version whose centroids and codes are taken over decides the content, too.
        if self.start is not None and self.stored_tokens is not None:
            inputs["start"] = fingerprint(self.start.manifest.stage("tokens").model_dump())[:16]
        folder = self.ledger.begin("tokens", inputs)
        if folder is None:
            return
        stored = None
        if self.stored_tokens is not None:
            stored = Stored(self.stored_tokens, self.earlier_rows)
        info = build_tokens(passages, folder, encoder, stored=stored, **stage_settings)
        self.ledger.finish("tokens", info.model_dump())

    def _write_bm25(
        self, passages: PassageStore, inputs: Mapping[str, object], language: str | None
    ) -> None:
        settings = self.settings
        stage_settings: dict[str, Any] = {"k1": settings.k1, "b": settings.b}
        if language not in (None, ENGLISH):
            stage_settings["language"] = language
        folder = self.ledger.begin("bm25", {**inputs, **stage_settings})
        if folder is None:
            return
        threads = settings.threads or os.cpu_count() or 1
        info = build_bm25(passages, folder, threads=threads, **stage_settings)
        self.ledger.finish("bm25", info.model_dump())


def _as_put(change: Change, stored: list[Passage]) -> Put:
    if isinstance(change, Passage):
        return Put(change.id, "", [change])
    if isinstance(change, DocumentEntry):
        return Put(change.id, change.digest, stored, sent=change.sent)
    return change


def _without_groups(put: Put) -> tuple[Put, Groups]:
    """A document whose passages do not name its groups, and these groups."""
    groups: Groups = frozenset()
    passages = []
    for passage in put.passages:
        metadata = dict(passage.metadata)
        if GROUPS_FIELD in metadata:
            try:
                groups |= groups_of(metadata.pop(GROUPS_FIELD))
            except ValueError as error:
                raise DataError(f"document {put.id!r}: {error}") from error
            passage = replace(passage, metadata=tuple(metadata.items()))
        passages.append(passage)
    return (replace(put, passages=passages) if groups else put), groups


def _store(documents: Iterable[Put], directory: Path) -> dict[str, Any]:
    """Write passages and documents; returns the number of passages and their digest."""
    with (
        writing_passages(directory) as writer,
        writing_documents(directory) as add_document,
        Progress(None, "passages", "store") as progress,
    ):
        for put in documents:
            writer.add_many(put.passages)
            add_document(put)
            progress.update(len(put.passages))
        if not len(writer):
            raise DataError(
                "there are no passages to index", hint="check the corpus and the split settings"
            )
    return {"count": len(writer), "sha256": writer.digest}


def _names_of(stages: Collection[StageName]) -> str:
    return ", ".join(stage for stage in STAGES if stage in stages)


def _refuse_foreign_files(directory: Path) -> None:
    def is_own(entry: Path) -> bool:
        is_data = entry.name.startswith(DATA_PREFIX)
        return entry.name in _OWN_FILES or is_data or TEMPORARY_MARK in entry.name

    with disk_errors(directory):
        foreign = sorted(entry.name for entry in directory.iterdir() if not is_own(entry))
    if foreign:
        raise ConfigError(
            f"{directory} holds other files ({', '.join(foreign[:3])}), not an index",
            hint="choose an empty or a new directory",
        )
