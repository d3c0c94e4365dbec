"""Open a finished index: its manifest, passages, vectors and BM25, checked against each other."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from indexers.build import (
    BM25_DIR,
    DENSE_DIR,
    EMBEDDINGS_DIR,
    INDEX_KIND,
    PASSAGES_DIR,
    TOKENS_DIR,
    manifest_checksum,
)
from indexers.embeddings import EmbeddingShards
from indexers.faiss_index import open_dense
from indexers.lucene import LuceneIndex
from indexers.passages import PassageStore
from indexers.presets import PARTS, Part
from indexers.protocols import EncoderIdentity, VectorIndex
from indexers.token_index import TokenIndex
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.manifest import MANIFEST_NAME, read_manifest, verify_files

Verify = Literal["none", "size", "deep"]
QUICK_CHECK_BYTES = 256 << 20


class Index:
    """An index directory, memory-mapped. Use it as a context manager, or call `close`.

    Attributes:
        version: first 12 hex digits of the manifest's checksum; part of every answer.
        embeddings: the stored vectors; None without a dense part.
        dense: vector search; None without a dense part.
        tokens: search in token vectors; None without them.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory, self.manifest = directory, manifest
        self.version: str = manifest["checksum"][:12]
        self.passages = PassageStore.open(directory / PASSAGES_DIR)
        self._expect(PASSAGES_DIR, len(self.passages), manifest["passages"]["count"])
        self.embeddings: EmbeddingShards | None = None
        self.dense: VectorIndex | None = None
        self.tokens: TokenIndex | None = None
        if "tokens" in self.parts:
            self.tokens = TokenIndex.open(directory / TOKENS_DIR)
            self._expect(TOKENS_DIR, len(self.tokens), len(self.passages))
            self._expect_encoder(TOKENS_DIR, self.tokens.encoder)
        if "dense" in self.parts:
            self.embeddings = EmbeddingShards.open(directory / EMBEDDINGS_DIR)
            self._expect(EMBEDDINGS_DIR, len(self.embeddings), len(self.passages))
            self._expect_encoder(EMBEDDINGS_DIR, self.embeddings.encoder)
            self.dense = open_dense(directory / DENSE_DIR, self.embeddings)

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
        manifest = read_manifest(place, kind=INDEX_KIND)
        if manifest.get("checksum") != manifest_checksum(manifest):
            raise ArtifactError(
                f"{place / MANIFEST_NAME} does not match its own checksum: its bytes were changed",
                hint="restore it or rebuild the index",
            )
        if verify != "none":
            _verify(place, manifest["files"], deep=verify == "deep")
        return cls(place, manifest)

    @cached_property
    def lucene(self) -> LuceneIndex | None:
        """BM25 search, opened (and Java started) on first use; None for a dense-only index."""
        if "bm25" not in self.parts:
            return None
        return LuceneIndex.open(self.directory / BM25_DIR)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What can be searched; does not start Java."""
        return tuple(part for part in PARTS if part in self.manifest["stages"])

    @property
    def encoder_identity(self) -> EncoderIdentity | None:
        """The encoder of the stored vectors; None for a BM25-only index."""
        stored = self.embeddings if self.tokens is None else self.tokens
        return None if stored is None else stored.encoder

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
            raise MismatchedArtifactError(
                f"{self.directory} was built with the encoder {stored.name!r}, not {identity.name!r} "
                f"({'; '.join(differences)})",
                hint="use the encoder of the index, or rebuild the index with this one",
            )

    def describe(self) -> str:
        """What is in the index and how it was built, for people."""
        files = self.manifest["files"]
        total = sum(entry["size_bytes"] for entry in files.values())
        lines = [
            f"{self.directory}: version {self.version}, {len(self.passages):,} passages, "
            f"{len(files)} files, {total / 1e6:,.1f} MB"
        ]
        for stage in self.manifest["stages"]:
            stage_bytes = sum(e["size_bytes"] for name, e in files.items() if name.startswith(f"{stage}/"))
            details = {
                key: value
                for key, value in self.manifest[stage].items()
                if key not in ("sha256", "metric", "rows", "dim") and value not in ("", None)
            }
            text = ", ".join(f"{key} {_plain(value)}" for key, value in details.items())
            lines.append(f"  {stage:<11}{stage_bytes / 1e6:>10,.1f} MB  {text}")
        if self.encoder_identity is not None:
            fields = self.encoder_identity.to_json().items()
            lines.append("  encoder    " + ", ".join(f"{key} {_plain(value)}" for key, value in fields))
        return "\n".join(lines)

    def close(self) -> None:
        """Release Lucene's files; memory maps go with the object."""
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
