"""Open a finished index: its manifest, passages, vectors and BM25, checked against each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

import pyarrow.compute as pc

from indexers.documents import Documents, Put
from indexers.embeddings import EmbeddingShards, ShardLayout
from indexers.faiss_index import DenseInfo, open_dense
from indexers.ledger import hold_folder
from indexers.lucene import Bm25Info, LuceneIndex
from indexers.manifest import Manifest
from indexers.metadata_values import PassageFilters
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity, Selection, VectorIndex, most_masks
from indexers.rights import DocumentRights, Readable
from indexers.settings import PARTS, Part
from indexers.token_files import TokenInfo
from indexers.token_index import TokenIndex
from rag.core.errors import (
    ArtifactError,
    ConfigError,
    MismatchedArtifactError,
    ResourceError,
)
from rag.core.types import Passage
from rag.data.filters import Filter
from rag.data.languages import ENGLISH

Verify = Literal["none", "size", "deep"]
QUICK_CHECK_BYTES = 256 << 20
_ATTEMPTS = 5
_MOST_FOLDERS = 200


class DensePart(NamedTuple):
    """The dense part of an index: vector search, the stored vectors, and their encoder."""

    vectors: VectorIndex
    embeddings: EmbeddingShards
    encoder: EncoderIdentity


class Index:
    """An index directory, memory-mapped. Use it as a context manager, or call `close`.

    Attributes:
        data: the folder with its files, which no update removes while the index is open.
        version: short hash of what it holds and how it was built; part of every answer.
        embeddings: the stored vectors; None without a dense part.
        dense: vector search; None without a dense part.
        tokens: search in token vectors; None without them.
        documents: the documents that the passages were cut from.
        rights: which documents people may read.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        # A link may be pointed elsewhere while the index is open.
        folder = directory.resolve()
        self.data = folder / manifest.data
        self.version = manifest.version
        self._release = hold_folder(self.data, self)
        self.embeddings: EmbeddingShards | None = None
        self.dense: VectorIndex | None = None
        self.tokens: TokenIndex | None = None
        self.passages = PassageStore(self.data / "passages")
        count = manifest.stage("passages").output["count"]
        if len(self.passages) != count:
            raise MismatchedArtifactError(
                f"{self.passages.directory} holds {len(self.passages):,} passages, the manifest "
                f"says {count:,}",
                hint="restore it or rebuild the index",
            )
        self.documents = Documents(self.data / "passages")
        self.rights = DocumentRights(folder, self.documents)
        filters = PassageFilters(self.passages, self.documents)
        self._select = lru_cache(most_masks(len(self.passages)))(filters.select)
        if "tokens" in self.parts:
            token_info = TokenInfo(**manifest.stage("tokens").output)
            self.tokens = TokenIndex(self.data / "tokens", token_info)
        if "dense" in self.parts:
            layout = ShardLayout(**manifest.stage("embeddings").output)
            self.embeddings = EmbeddingShards.open(self.data / "embeddings", layout)
            dense_info = DenseInfo(**manifest.stage("dense").output)
            self.dense = open_dense(self.data / "dense", self.embeddings, dense_info)

    @classmethod
    def open(cls, directory: str | Path, *, verify: Verify = "size") -> Index:
        """Open an index.

        Args:
            verify: "size" checks the size of every file, and checksums, smallest files first, until
                `QUICK_CHECK_BYTES` are read; "deep" checks every checksum; "none" trusts the
                directory. Headers are always checked.

        Raises:
            IncompleteArtifactError: the build is not finished.
            ArtifactError: a file is missing, truncated, changed or in another format; the message
                names it.
            MismatchedArtifactError: files do not belong together, or a newer version wrote them.
        """
        folder = Path(directory)
        for _ in range(_ATTEMPTS):
            manifest = Manifest.read(folder)
            try:
                if verify != "none":
                    read_bytes = math.inf if verify == "deep" else QUICK_CHECK_BYTES
                    manifest.verify(folder, read_bytes=read_bytes)
                return cls(folder, manifest)
            except ArtifactError:  # while it was opened, an update may have removed its files
                if Manifest.read(folder) == manifest:
                    raise
        raise ResourceError(
            f"{folder} changes faster than it can be opened", hint="try again later"
        )

    @cached_property
    def lucene(self) -> LuceneIndex | None:
        """BM25 search, opened (and Java started) on first use; None for a dense-only index."""
        if "bm25" not in self.parts:
            return None
        info = Bm25Info(**self.manifest.stage("bm25").output)
        return LuceneIndex(self.data / "bm25", info)

    def puts(self) -> Iterator[Put]:
        """The documents with their passages, in the order of the index, for another index."""
        read = self.passages.in_order()
        for entry in self.documents:
            yield Put(entry.id, entry.digest, read(entry.rows), sent=entry.sent)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Names of the searchable parts; does not start Java."""
        return tuple(part for part in PARTS if part in self.manifest.stages)

    @property
    def language(self) -> str:
        """The language whose rules apply to passages and questions; English if none was stated."""
        return self.manifest.language or ENGLISH

    @property
    def encoder_identity(self) -> EncoderIdentity | None:
        """The encoder of the stored vectors; None for a BM25-only index."""
        return self.manifest.encoder

    def require_dense(self) -> DensePart:
        """The dense part; a ConfigError if there is none."""
        if self.dense is None or self.embeddings is None or self.encoder_identity is None:
            raise ConfigError(
                f"{self.directory} has no vectors",
                hint="build it with `rag index … --retriever dense`",
            )
        return DensePart(self.dense, self.embeddings, self.encoder_identity)

    def select(self, filter: Filter, readable: Readable | None = None) -> Selection:
        """The rows whose passages meet a filter; results of the last filters are cached.

        Args:
            readable: what may be read; None: everything. The filter tells no more than it would
                over an index of these passages alone.

        Raises:
            FilterError: no passage has a field of this name, or its values cannot be compared with
                a bound.
        """
        return self._select(filter, readable)

    @cached_property
    def _all_folders(self) -> list[str]:
        return self._folders(None)

    def folders(self, readable: Readable | None = None) -> list[str]:
        """The folders that the readable passages' files lie in, each with a slash at its end; none
        if there are more than `_MOST_FOLDERS`.

        A search page offers them as filters: `{"path": "guide/"}` selects everything in the folder.
        """
        return self._all_folders if readable is None else self._folders(readable)

    def _folders(self, readable: Readable | None) -> list[str]:
        paths = self.passages.column("path")
        if paths is None:
            return []
        if readable is not None:
            paths = paths.take(readable.rows.rows)
        files = [path for path in pc.unique(paths).drop_null().to_pylist() if "://" not in path]
        parents = {parent.as_posix() for path in files for parent in PurePath(path).parents}
        named = sorted(f"{folder}/" for folder in parents - {".", "/"})
        return named if len(named) <= _MOST_FOLDERS else []

    def around(self, passage_id: str, count: int) -> tuple[list[Passage], list[Passage]]:
        """At most `count` passages before and after this one in the same document."""
        row = self.passages.row_of(passage_id)
        if row is None:
            return [], []
        rows = self.documents.of_row(row).rows
        before = range(max(rows.start, row - count), row)
        after = range(row + 1, min(row + count + 1, rows.stop))
        return self.passages.get_many(before), self.passages.get_many(after)

    def document_of(self, passage_id: str) -> str:
        """The id of a passage's document; the id itself if the index has no such passage."""
        row = self.passages.row_of(passage_id)
        return passage_id if row is None else self.documents.of_row(row).id

    def check_encoder(self, identity: EncoderIdentity) -> None:
        """Refuse an encoder whose vectors cannot be compared with the stored ones.

        Raises:
            MismatchedArtifactError: names every field that differs.
            ConfigError: the index has no vectors.
        """
        if self.encoder_identity is None:
            raise ConfigError(f"{self.directory} has no vectors", hint="use retriever bm25")
        self.encoder_identity.check(self.directory, identity)

    def describe(self) -> str:
        """A text about the content of the index and how it was built."""
        total_bytes = sum(file.size_bytes for file in self.manifest.files.values())
        lines = [
            f"{self.directory}: version {self.version}, {len(self.passages):,} passages, "
            f"{_readable_size(total_bytes)}"
        ]
        for name in self.manifest.settings.stages:
            stage = self.manifest.stage(name)
            stage_bytes = sum(file.size_bytes for file in stage.files.values())
            details = {
                key: value
                for key, value in stage.output.items()
                if key not in ("sha256", "metric", "rows", "dim", "shard_tokens")
                and value not in ("", None)
            }
            lines.append(f"  {name:<11}{_readable_size(stage_bytes):>13}  {_pairs(details)}")
        if self.encoder_identity is not None:
            lines.append(f"  encoder    {_pairs(self.encoder_identity.to_json())}")
        return "\n".join(lines)

    def close(self) -> None:
        """Release Lucene's files and a sharded search; memory maps go with the object."""
        for part in (self.dense, self.__dict__.pop("lucene", None)):
            close = getattr(part, "close", None)
            if close is not None:
                close()
        self._release()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {value!r}" if value == "" else f"{key} {value}" for key, value in values.items()
    )


def _readable_size(size_bytes: int) -> str:
    return f"{size_bytes / 1e3:,.1f} kB" if size_bytes < 1e6 else f"{size_bytes / 1e6:,.1f} MB"
