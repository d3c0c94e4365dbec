"""Take vectors of unchanged passages from an earlier index, so that only new or changed ones are encoded.

A corpus that grows, shrinks or is corrected is indexed again, into a new directory, with `KnownVectors`
around its encoder: a passage whose title and text are in an earlier index of the same encoder gets its
vector from there. Ids do not matter, nor the order. FAISS and Lucene are built anew, in minutes where
encoding takes hours, and a server can then switch to the new index while it runs.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexers.build import EMBEDDINGS_DIR, PASSAGES_DIR
from indexers.embedding_shards import EmbeddingShards
from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity, PassageEncoder, ReportingEncoder
from indexers.settings import VectorDtype
from rag.core.arrays import Float32, Int64
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.manifest import verify_files
from rag.core.progress import Progress

_CHECKED_PASSAGES, _PASSAGES_AT_ONCE = 16, 4096
_FARTHEST = 0.1  # of a vector's length: float16 and bf16 stay below it, another encoder does not
# Fields that may differ while passages get equal vectors.
_QUESTION_SIDE = ("weights_sha256", "name", "query_prefix")
_KEY = np.dtype([("high", "<u8"), ("low", "<u8")])


class KnownVectors:
    """A passage encoder that first looks for vectors in earlier indexes.

    Args:
        encoder: encodes the passages that are in no earlier index.
        indexes: earlier indexes with dense retrieval; a vector comes from the first one that holds the
            passage. Their checksums are verified.
        dtype: type of the numbers to be stored: vectors rounded to float16 are not used for float32.

    Attributes:
        reused: number of passages so far whose vector came from an earlier index.

    Raises:
        ArtifactError: an index is unfinished or damaged.
        ConfigError: an index has no vectors, or less precise ones than `dtype`.
        MismatchedArtifactError: an index was made by an encoder that gives passages other vectors.

    Memory: 24 bytes for each passage of the earlier indexes.
    """

    def __init__(
        self, encoder: PassageEncoder, indexes: Sequence[str | Path], dtype: VectorDtype = "float16"
    ) -> None:
        self._encoder = encoder
        self._counts = [0]  # shared with the copies that `reporting` makes
        # Called with the number of passages: reused ones, and encoded ones unless the encoder reports them.
        self._on_reused: Callable[[int], None] = _ignore
        self._on_encoded: Callable[[int], None] = _ignore
        self._known = [_Known.read(Path(path), encoder, dtype) for path in indexes]

    @classmethod
    def of_rows(cls, encoder: PassageEncoder, index: Index, rows: Int64) -> KnownVectors:
        """Take vectors from these rows (n,) of an open index, made by this encoder."""
        known = cls(encoder, [])
        if len(rows) and index.embeddings is not None:
            known._known = [_Known.of_rows(index.embeddings, index.passages, rows)]
        return known

    @property
    def dim(self) -> int:
        """Vector size D."""
        return self._encoder.dim

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the wrapped encoder."""
        return self._encoder.identity

    @property
    def reused(self) -> int:
        """Passages so far whose vector came from an earlier index; other texts are not counted."""
        return self._counts[0]

    def reporting(self, done: Callable[[int], None]) -> KnownVectors:
        """This encoder, but calling `done` with the number of passages that got their vectors."""

        def add_reused(count: int) -> None:
            self._counts[0] += count
            done(count)

        copied = copy.copy(self)
        copied._on_reused = add_reused
        if isinstance(self._encoder, ReportingEncoder):
            copied._encoder = self._encoder.reporting(done)
        else:
            copied._on_encoded = done
        return copied

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32, in the order of the arguments."""
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        keys = _keys(titles, texts)
        missing = np.arange(len(texts))
        for known in self._known:
            rows = known.find(keys[missing])
            found = rows >= 0
            vectors[missing[found]] = known.embeddings.rows(rows[found])
            missing = missing[~found]
        self._on_reused(len(texts) - len(missing))
        if len(missing):
            wanted = missing.tolist()
            vectors[missing] = self._encoder.encode_passages(
                [titles[row] for row in wanted], [texts[row] for row in wanted]
            )
            self._on_encoded(len(missing))
        return vectors


def _ignore(count: int) -> None:
    pass


class _Known:
    """The passages of one index by hash of title and text."""

    def __init__(self, embeddings: EmbeddingShards, rows: Int64, keys: NDArray[np.void]) -> None:
        self.embeddings = embeddings
        order = np.argsort(keys["high"], kind="stable")
        self._rows, self._keys = rows[order], keys[order]

    @classmethod
    def read(cls, place: Path, encoder: PassageEncoder, dtype: VectorDtype) -> _Known:
        with Index.open(place, verify="none") as index:
            embeddings, passages = index.embeddings, index.passages
            files = index.manifest["files"]
        if embeddings is None:
            raise ConfigError(
                f"{place} has no vectors to reuse", hint="give an index with dense or hybrid retrieval"
            )
        needed = {name: files[name] for name in files if {PASSAGES_DIR, EMBEDDINGS_DIR} & {*name.split("/")}}
        verify_files(place, needed, deep=True)
        if dtype == "float32" and embeddings.dtype != "float32":
            raise ConfigError(
                f"{place} holds vectors rounded to {embeddings.dtype}, the new index stores float32",
                hint="build it with --index-type fp16, or without --reuse",
            )
        _check_encoder(place, passages, embeddings, encoder)
        with Progress(len(passages), "passages", f"read {place}") as progress:
            return cls.of_rows(embeddings, passages, np.arange(len(passages)), progress.update)

    @classmethod
    def of_rows(
        cls,
        embeddings: EmbeddingShards,
        passages: PassageStore,
        rows: Int64,
        done: Callable[[int], None] = lambda count: None,
    ) -> _Known:
        parts = []
        for start in range(0, len(rows), _PASSAGES_AT_ONCE):
            batch = passages.get_many(rows[start : start + _PASSAGES_AT_ONCE])
            parts.append(_keys([p.title for p in batch], [p.text for p in batch]))
            done(len(batch))
        return cls(embeddings, rows, np.concatenate(parts))

    def find(self, keys: NDArray[np.void]) -> Int64:
        """Row of each key (n,), -1 where the index does not hold it."""
        places = np.searchsorted(self._keys["high"], keys["high"])
        places[places == len(self._keys)] = 0
        return np.where(self._keys[places] == keys, self._rows[places], -1)


def _keys(titles: Sequence[str], texts: Sequence[str]) -> NDArray[np.void]:
    """Hashes (n,) of 128 bits of the passages' titles and texts."""

    def digests() -> Iterator[bytes]:
        for title, text in zip(titles, texts, strict=True):
            head = title.encode()
            content = len(head).to_bytes(8, "little") + head + text.encode()
            yield hashlib.blake2b(content, digest_size=_KEY.itemsize).digest()

    return np.frombuffer(b"".join(digests()), dtype=_KEY)


def _check_encoder(
    place: Path, passages: PassageStore, embeddings: EmbeddingShards, encoder: PassageEncoder
) -> None:
    stored, wanted = embeddings.encoder, encoder.identity
    differences = stored.differences(wanted)
    if odd := [line for line in differences if not line.startswith(_QUESTION_SIDE)]:
        raise MismatchedArtifactError(
            f"{place} holds vectors of {stored.name!r}, not of {wanted.name!r} ({'; '.join(odd)})",
            hint="use the encoder and the settings of that index",
        )
    if differences:
        check_passage_vectors(place, passages, embeddings, encoder)


def check_passage_vectors(
    place: Path,
    passages: PassageStore,
    embeddings: EmbeddingShards,
    encoder: PassageEncoder,
    *,
    seed: int = 0,
) -> None:
    """Refuse an encoder that gives passages other vectors than the index holds, tested on a sample.

    Raises:
        MismatchedArtifactError: the vectors differ; the message states by how much.
    """
    count = min(_CHECKED_PASSAGES, len(passages))
    rows = np.sort(np.random.default_rng(seed).choice(len(passages), count, replace=False))
    stored = embeddings.rows(rows)
    sample = passages.get_many(rows)
    computed = encoder.encode_passages([p.title for p in sample], [p.text for p in sample])
    if computed.shape != stored.shape:
        raise MismatchedArtifactError(
            f"the vectors in {place} have {stored.shape[1]} dimensions, those of {encoder.identity.name} "
            f"have {computed.shape[1]}"
        )
    apart = np.linalg.norm(computed - stored, axis=1) / np.maximum(np.linalg.norm(stored, axis=1), 1e-30)
    if apart.max() > _FARTHEST:
        raise MismatchedArtifactError(
            f"{encoder.identity.name} gives passages of {place} other vectors ({apart.max():.0%} apart)",
            hint=f"name the encoder that it was made with, {embeddings.encoder.name}, or build it again",
        )
