"""Open a finished index: its manifest, passages, vectors and BM25, checked against each other."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from indexers.build import (
    BM25_DIR,
    DENSE_DIR,
    EMBEDDINGS_DIR,
    INDEX_KIND,
    PASSAGES_DIR,
    TOKENS_DIR,
    manifest_checksum,
)
from indexers.embedding_shards import EmbeddingShards
from indexers.faiss_index import FAISS_NAME, open_dense
from indexers.filtering import Naming, folders, select
from indexers.lucene import FOLDER_NAME, LuceneIndex
from indexers.mapped_lists import LISTS_NAME
from indexers.passages import IDS_NAME, PassageStore
from indexers.presets import PARTS, Part
from indexers.protocols import EncoderIdentity, VectorIndex
from indexers.provenance import naming_of_index
from indexers.segments import ROWS_NAME, LiveRows, open_segments
from indexers.selected import Selection
from indexers.token_index import TokenIndex
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError, ResourceError
from rag.core.manifest import MANIFEST_NAME, read_manifest, verify_files, version_of
from rag.core.npy import load_npy
from rag.core.page_cache import read_ahead
from rag.core.types import Passage
from rag.data.filters import Filter
from rag.data.split import document_of

Verify = Literal["none", "size", "deep"]
QUICK_CHECK_BYTES = 256 << 20
_ATTEMPTS = 5
ENCODER_DIR = "encoder"  # the encoder's folder, where the index keeps one
_KEPT_FILTERS, _KEPT_BYTES = 64, 64 << 20  # limits of the cache of filters, one byte per passage


class DensePart(NamedTuple):
    """The dense part of an index: vector search, the stored vectors, and their encoder."""

    vectors: VectorIndex
    embeddings: EmbeddingShards
    encoder: EncoderIdentity


class Index:
    """An index directory, memory-mapped. Use it as a context manager, or call `close`.

    Attributes:
        version: first 12 hex digits of the manifest's checksum; part of every answer.
        embeddings: the stored vectors; None without a dense part.
        dense: vector search; None without a dense part.
        tokens: search in token vectors; None without them.
        live: rows of the segments that are in the index; None if it was never updated.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory, self.manifest = directory, manifest
        self.version = version_of(manifest)
        self._selections: dict[Filter, Selection] = {}
        self.embeddings: EmbeddingShards | None = None
        self.dense: VectorIndex | None = None
        self.tokens: TokenIndex | None = None
        self.live: LiveRows | None = None
        if "folders" in manifest:
            self._open_segments()
            return
        self.passages = PassageStore.open(directory / PASSAGES_DIR)
        self._expect(PASSAGES_DIR, len(self.passages), manifest["passages"]["count"])
        if "tokens" in self.parts:
            self.tokens = TokenIndex.open(directory / TOKENS_DIR)
            self._expect(TOKENS_DIR, len(self.tokens), len(self.passages))
            self._expect_encoder(TOKENS_DIR, self.tokens.encoder)
        if "dense" in self.parts:
            self.embeddings = EmbeddingShards.open(directory / EMBEDDINGS_DIR)
            self._expect(EMBEDDINGS_DIR, len(self.embeddings), len(self.passages))
            self._expect_encoder(EMBEDDINGS_DIR, self.embeddings.encoder)
            self.dense = open_dense(directory / DENSE_DIR, self.embeddings)

    def _open_segments(self) -> None:
        """Open an index that was updated; see `indexers.segments`."""
        folders = self.manifest["folders"]
        rows = load_npy(
            self.directory / folders["version"] / ROWS_NAME,
            dtype=np.int64,
            shape=(self.manifest["passages"]["count"],),
        )
        opened = open_segments(
            [self.directory / segment for segment in folders["segments"]],
            rows,
            has_dense="dense" in self.parts,
        )
        self.live, self.passages = opened.live, opened.passages
        self.embeddings, self.dense = opened.embeddings, opened.dense
        if self.embeddings is not None:
            self._expect_encoder(EMBEDDINGS_DIR, self.embeddings.encoder)

    def _expect_encoder(self, what: str, found: EncoderIdentity) -> None:
        if found.to_json() != self.manifest["encoder"]:
            raise MismatchedArtifactError(
                f"{self.directory / what} was made by another encoder than {MANIFEST_NAME} states",
                hint="rebuild the index",
            )

    def _expect(self, what: str, found: int, expected: int) -> None:
        if found != expected:
            raise MismatchedArtifactError(
                f"{self.directory / what} has {found} rows, expected {expected}", hint="rebuild the index"
            )

    @classmethod
    def open(cls, directory: str | Path, *, verify: Verify = "size") -> Index:
        """Open an index.

        Args:
            verify: "size" checks the size of every file, and checksums, smallest files first, until
                `QUICK_CHECK_BYTES` are read; "deep" checks every checksum; "none" trusts the directory.
                Headers are always checked.

        Raises:
            IncompleteArtifactError: the build is not finished.
            ArtifactError: a file is missing, truncated, changed or in another format; the message names it.
            MismatchedArtifactError: files do not belong together, or a newer version wrote them.
        """
        if verify not in ("none", "size", "deep"):
            raise ConfigError(f"verify is {verify!r}", hint="choose none, size or deep")
        place = Path(directory)
        for _ in range(_ATTEMPTS):
            manifest = read_manifest(place, kind=INDEX_KIND)
            if manifest.get("checksum") != manifest_checksum(manifest):
                raise ArtifactError(
                    f"{place / MANIFEST_NAME} does not match its own checksum: its bytes were changed",
                    hint="restore it or rebuild the index",
                )
            try:
                if verify != "none":
                    _verify(place, manifest["files"], deep=verify == "deep")
                return cls(place, manifest)
            except ArtifactError:  # while it was opened, two updates may have made its files superfluous
                if read_manifest(place, kind=INDEX_KIND) == manifest:
                    raise
        raise ResourceError(f"{place} changes faster than it can be opened", hint="try again later")

    @cached_property
    def lucene(self) -> LuceneIndex | None:
        """BM25 search, opened (and Java started) on first use; None for a dense-only index."""
        if "bm25" not in self.parts:
            return None
        return LuceneIndex.open(self.directory / self.manifest.get("folders", {}).get("bm25", BM25_DIR))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Names of the searchable parts; does not start Java."""
        return tuple(part for part in PARTS if part in self.manifest["stages"])

    @property
    def encoder_identity(self) -> EncoderIdentity | None:
        """The encoder of the stored vectors, named by its folder in the index if that keeps one; None for a
        BM25-only index.
        """
        stored = self.embeddings if self.tokens is None else self.tokens
        if stored is None:
            return None
        folder = self.directory / ENCODER_DIR
        return replace(stored.encoder, name=str(folder.resolve())) if folder.is_dir() else stored.encoder

    def require_dense(self) -> DensePart:
        """The dense part.

        Raises:
            ConfigError: there is none.
        """
        if self.dense is None or self.embeddings is None or self.encoder_identity is None:
            raise ConfigError(f"{self.directory} has no vectors", hint="build it with --retriever dense")
        return DensePart(self.dense, self.embeddings, self.encoder_identity)

    def select(self, filter: Filter) -> Selection:
        """The rows whose passages meet a filter; results of the last filters are cached.

        Raises:
            FilterError: no passage has a field that the filter names.
        """
        selected = self._selections.pop(filter, None)
        if selected is None:
            selected = select(self.passages, filter, self._naming)
        self._selections[filter] = selected  # the most recently used comes last
        if len(self._selections) > max(2, min(_KEPT_FILTERS, _KEPT_BYTES // len(self.passages))):
            del self._selections[next(iter(self._selections))]
        return selected

    @cached_property
    def _naming(self) -> Naming:
        return naming_of_index(self.directory)

    @cached_property
    def folders(self) -> list[str]:
        """The folders of the indexed files; none if they are too many to choose from."""
        return folders(self.passages)

    def around(self, passage_id: str, count: int) -> tuple[list[Passage], list[Passage]]:
        """At most `count` passages before and after this one in the same document."""
        row = self.passages.row_of(passage_id)
        if row is None:
            return [], []
        first, stop = max(0, row - count), min(len(self.passages), row + count + 1)
        parts = [self.passages.get_many(range(*part)) for part in ((first, row), (row + 1, stop))]
        whole = document_of(passage_id)
        before, after = ([one for one in part if document_of(one.id) == whole] for part in parts)
        return before, after

    def check_encoder(self, identity: EncoderIdentity) -> None:
        """Refuse an encoder whose vectors cannot be compared with the stored ones.

        Raises:
            MismatchedArtifactError: names every field that differs.
            ConfigError: the index has no vectors.
        """
        stored = self.encoder_identity
        if stored is None:
            raise ConfigError(f"{self.directory} has no vectors", hint="use retriever bm25")
        differences = stored.differences(identity)
        if differences:
            same_name = stored.name == identity.name
            given = "what has this name now, as after an upgrade" if same_name else repr(identity.name)
            raise MismatchedArtifactError(
                f"{self.directory} was built with the encoder {stored.name!r}, not {given} "
                f"({'; '.join(differences)})",
                hint="use the encoder of the index, or build the index again with this one (rag index)",
            )

    def describe(self) -> str:
        """A text about the content of the index and how it was built."""
        files = self.manifest["files"]
        total = sum(entry["size_bytes"] for entry in files.values())
        lines = [
            f"{self.directory}: version {self.version}, {len(self.passages):,} passages, "
            f"{total / 1e6:,.1f} MB"
        ]
        for stage in self.manifest["stages"]:
            stage_bytes = sum(e["size_bytes"] for name, e in files.items() if f"/{stage}/" in f"/{name}")
            details = {
                key: value
                for key, value in self.manifest[stage].items()
                if key not in ("sha256", "metric", "rows", "dim") and value not in ("", None)
            }
            text = ", ".join(f"{key} {_plain(value)}" for key, value in details.items())
            lines.append(f"  {stage:<11}{stage_bytes / 1e6:>10,.1f} MB  {text}")
        if self.live is not None:
            dead = int(self.live.bounds[-1]) - len(self.live)
            lines.append(
                f"  segments   {len(self.manifest['folders']['segments'])}, {dead:,} deleted passages in them"
            )
        if self.encoder_identity is not None:
            fields = self.encoder_identity.to_json().items()
            lines.append("  encoder    " + ", ".join(f"{key} {_plain(value)}" for key, value in fields))
        return "\n".join(lines)

    def read_ahead(self) -> int:
        """Let the system read what every search uses into its cache; see `page_cache.read_ahead`."""
        used = (IDS_NAME, FAISS_NAME, LISTS_NAME)
        names = [Path(name) for name in self.manifest["files"]]
        return read_ahead(
            self.directory / name for name in names if name.name in used or FOLDER_NAME in name.parts
        )

    def close(self) -> None:
        """Release Lucene's files and a sharded search; memory maps go with the object."""
        if (close := getattr(self.dense, "close", None)) is not None:
            close()
        lucene = self.__dict__.pop("lucene", None)
        if lucene is not None:
            lucene.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items()) + "}"
    return repr(value) if value == "" else str(value)


def _verify(place: Path, files: dict[str, dict[str, Any]], *, deep: bool) -> None:
    verify_files(place, files, deep=deep)
    if deep:
        return
    budget = QUICK_CHECK_BYTES
    for name, entry in sorted(files.items(), key=lambda item: (item[1]["size_bytes"], item[0])):
        budget -= entry["size_bytes"]
        if budget < 0:
            break
        verify_files(place, {name: entry}, deep=True)
