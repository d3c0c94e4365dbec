"""Open a finished index: its manifest, passages, vectors and BM25, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from indexers.documents import DOCUMENTS_NAME, DocumentEntry, group_passages, read_document_entries
from indexers.embeddings import EmbeddingShards, Header
from indexers.faiss_index import open_dense
from indexers.filtering import Naming, folders, select
from indexers.ledger import read_index_manifest
from indexers.lucene import LuceneIndex
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity, Selection, VectorIndex
from indexers.settings import PARTS, Part
from indexers.token_index import TokenIndex
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError, ResourceError
from rag.core.files import hold_folder
from rag.core.manifest import read_manifest, verify_files
from rag.core.types import Passage
from rag.data.filters import Filter
from rag.data.split import document_of

Verify = Literal["none", "size", "deep"]
QUICK_CHECK_BYTES = 256 << 20
_ATTEMPTS = 5
_MOST_FILTERS, _FILTER_BYTES = 64, 64 << 20  # limits of the cache of filters, one byte per passage


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
    """

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory, self.manifest = directory, manifest
        self.data, self.version = directory / manifest["data"], str(manifest["version"])
        self._release = hold_folder(self.data, self)
        self._selections: dict[Filter, Selection] = {}
        self.embeddings: EmbeddingShards | None = None
        self.dense: VectorIndex | None = None
        self.tokens: TokenIndex | None = None
        self.passages = PassageStore.open(self.data / "passages")
        if len(self.passages) != manifest["passages"]["count"]:
            raise MismatchedArtifactError(
                f"{self.passages.directory} has {len(self.passages)} passages", hint="rebuild the index"
            )
        if "tokens" in self.parts:
            described = {**manifest["tokens"], "encoder": manifest["encoder"]}
            self.tokens = TokenIndex(self.data / "tokens", described)
        if "dense" in self.parts:
            header = Header.of({**manifest["embeddings"], "encoder": manifest["encoder"]})
            self.embeddings = EmbeddingShards.open(self.data / "embeddings", header)
            self.dense = open_dense(self.data / "dense", self.embeddings, manifest["dense"])

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
        place = Path(directory)
        for _ in range(_ATTEMPTS):
            manifest = read_index_manifest(place)
            try:
                if verify != "none":
                    _verify(place / manifest["data"], manifest["files"], deep=verify == "deep")
                return cls(place, manifest)
            except ArtifactError:  # while it was opened, an update may have removed its files
                if read_manifest(place) == manifest:
                    raise
        raise ResourceError(f"{place} changes faster than it can be opened", hint="try again later")

    @cached_property
    def lucene(self) -> LuceneIndex | None:
        """BM25 search, opened (and Java started) on first use; None for a dense-only index."""
        if "bm25" not in self.parts:
            return None
        return LuceneIndex.open(self.data / "bm25", self.manifest["bm25"])

    @property
    def source(self) -> dict[str, Any]:
        """How the corpus was read and cut ("files", "options"); empty for passages from Python."""
        return self.manifest["inputs"]["passages"].get("source") or {}

    @cached_property
    def documents(self) -> dict[str, DocumentEntry]:
        """The documents by id, in the order of the index; without a list of them they have no digests."""
        path = self.data / "passages" / DOCUMENTS_NAME
        if path.exists():
            return read_document_entries(path)
        is_cut = self.source.get("options", {}).get("split") not in (None, "none")
        return group_passages((passage.id for passage in self.passages), document_of if is_cut else str)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Names of the searchable parts; does not start Java."""
        return tuple(part for part in PARTS if part in self.manifest["stages"])

    @property
    def encoder_identity(self) -> EncoderIdentity | None:
        """The encoder of the stored vectors; None for a BM25-only index."""
        stored = self.embeddings if self.tokens is None else self.tokens
        return None if stored is None else stored.encoder

    def require_dense(self) -> DensePart:
        """The dense part; a ConfigError if there is none."""
        if self.dense is None or self.embeddings is None or self.encoder_identity is None:
            raise ConfigError(f"{self.directory} has no vectors", hint="build it with --retriever dense")
        return DensePart(self.dense, self.embeddings, self.encoder_identity)

    def select(self, filter: Filter) -> Selection:
        """The rows whose passages meet a filter; results of the last filters are cached."""
        selected = self._selections.pop(filter, None)
        if selected is None:
            split = self.source.get("options", {}).get("split")
            naming: Naming = "unknown" if split is None else "whole" if split == "none" else "pieces"
            selected = select(self.passages, filter, naming)
        self._selections[filter] = selected  # the most recently used comes last
        if len(self._selections) > max(2, min(_MOST_FILTERS, _FILTER_BYTES // len(self.passages))):
            del self._selections[next(iter(self._selections))]
        return selected

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
        before, after = ([it for it in part if document_of(it.id) == whole] for part in parts)
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
            other = "what has this name now, as after an upgrade" if same_name else repr(identity.name)
            raise MismatchedArtifactError(
                f"{self.directory} was built with the encoder {stored.name!r}, not {other} "
                f"({'; '.join(differences)})",
                hint="use the encoder of the index, or build the index again with this one (rag index)",
            )

    def describe(self) -> str:
        """A text about the content of the index and how it was built."""
        sizes = {name: entry["size_bytes"] for name, entry in self.manifest["files"].items()}
        lines = [
            f"{self.directory}: version {self.version}, {len(self.passages):,} passages, "
            f"{sum(sizes.values()) / 1e6:,.1f} MB"
        ]
        for stage in self.manifest["stages"]:
            stage_bytes = sum(size for name, size in sizes.items() if name.startswith(f"{stage}/"))
            details = {
                key: value
                for key, value in self.manifest[stage].items()
                if key not in ("sha256", "metric", "rows", "dim", "shard_tokens") and value not in ("", None)
            }
            lines.append(f"  {stage:<11}{stage_bytes / 1e6:>10,.1f} MB  {_listed(details)}")
        if self.encoder_identity is not None:
            lines.append(f"  encoder    {_listed(self.encoder_identity.to_json())}")
        return "\n".join(lines)

    def close(self) -> None:
        """Release Lucene's files and a sharded search; memory maps go with the object."""
        for part in (self.dense, self.__dict__.pop("lucene", None)):
            if (close := getattr(part, "close", None)) is not None:
                close()
        self._release()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value!r}" if value == "" else f"{key} {value}" for key, value in values.items())


def _verify(place: Path, files: dict[str, dict[str, Any]], *, deep: bool) -> None:
    verify_files(place, files, deep=deep)
    budget = 0 if deep else QUICK_CHECK_BYTES
    for name, entry in sorted(files.items(), key=lambda item: (item[1]["size_bytes"], item[0])):
        budget -= entry["size_bytes"]
        if budget < 0:
            break
        verify_files(place, {name: entry}, deep=True)
