"""Write passage embeddings: a series of `.npy` files (shards), one by one; a shard that is there is finished.

Each is written beside its place and renamed, so a killed run loses at most the shard it was working on. Until
they are part of an index, whose manifest says it, `embeddings.json` says what they are.

float16 halves the disk and keeps 11 significant bits: for unit vectors an inner product moves by less than
5e-4 in the worst case and about 1e-5 in practice. "Exact" search is then exact for what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from indexers.embedding_shards import HEADER_NAME, EmbeddingShards, Header, shard_name
from indexers.passages import PassageStore
from indexers.protocols import PassageEncoder, ReportingEncoder
from indexers.settings import SHARD_ROWS, VectorDtype
from rag.core.arrays import Bool, Float32, Int64
from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.files import atomic_path, atomic_write_json, clean_directory, link_or_copy, remove_temporaries
from rag.core.manifest import differences
from rag.core.npy import save_npy
from rag.core.progress import Progress

_TEXTS_AT_ONCE = 4096


def begin_shards(directory: Path, header: Header) -> list[tuple[int, int, int]]:
    """Begin a folder of embeddings, or go on with it; the caller is its only writer.

    Returns:
        The shards that are missing: (shard, first row, one past the last row).

    Raises:
        MismatchedArtifactError: the folder holds shards of another encoder, size or dtype.
    """
    clean_directory(directory)
    if (directory / HEADER_NAME).exists():
        sides = (
            {**side.to_json(), "encoder": side.encoder.comparable()}
            for side in (Header.read(directory), header)
        )
        if changed := differences(*sides):
            raise MismatchedArtifactError(
                f"{directory} holds embeddings made with other settings ({changed})",
                hint="continue with the same settings, choose another --out, or add --overwrite",
            )
    else:
        atomic_write_json(directory / HEADER_NAME, header.to_json())
    shards = (shard for shard in range(header.shards) if not (directory / shard_name(shard)).is_file())
    return [(shard, *header.shard_range(shard)) for shard in shards]


def store_shard(directory: Path, shard: int, vectors: Float32) -> None:
    """Write one shard, in this process or another, into a folder that was begun.

    Args:
        vectors: (shard's rows, D).

    Raises:
        DataError: wrong shape, or a value that is not finite in the stored dtype.
        ResourceError: the disk is full.
    """
    header = Header.read(directory)
    start, stop = header.shard_range(shard)
    if vectors.shape != (stop - start, header.dim):
        raise DataError(
            f"the encoder gave vectors of shape {vectors.shape} for rows {start}…{stop - 1}, "
            f"expected {(stop - start, header.dim)}"
        )
    with np.errstate(over="ignore"):
        stored = vectors.astype(header.dtype)
    if len(rows := np.flatnonzero(~np.isfinite(stored).all(axis=1))):
        raise DataError(
            f"the vector of row {start + rows[0]} is not finite as {header.dtype} ({len(rows)} such rows in "
            f"shard {shard})",
            hint="use an index type that stores float32 (flat), or check the encoder's weights",
        )
    save_npy(directory / shard_name(shard), stored)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The passages of a corpus whose vectors are stored already.

    Attributes:
        sources: stored embeddings, and for each passage (N,) its row in them; -1 where it has none there.
    """

    sources: Sequence[tuple[EmbeddingShards, Int64]]

    def is_new(self, start: int, stop: int) -> Bool:
        """(n,): which passages of these rows have no vector yet."""
        is_new = np.ones(stop - start, bool)
        for _, rows in self.sources:
            is_new &= rows[start:stop] < 0
        return is_new

    def vectors(self, start: int, stop: int, dim: int) -> Float32:
        """(n, D), filled where a passage has a vector."""
        vectors = np.empty((stop - start, dim), np.float32)
        for embeddings, rows in self.sources:
            some = rows[start:stop]
            vectors[some >= 0] = embeddings.rows(some[some >= 0])
        return vectors

    def link_shard(self, directory: Path, header: Header, shard: int) -> bool:
        """Take over a whole file, where the rows of a shard are those of a stored one."""
        start, stop = header.shard_range(shard)
        for embeddings, rows in self.sources:
            is_alike = (embeddings.dtype, embeddings.shard_rows) == (header.dtype, header.shard_rows)
            has_end = shard < embeddings.shards and embeddings.header.shard_range(shard) == (start, stop)
            if is_alike and has_end and np.array_equal(rows[start:stop], np.arange(start, stop)):
                with atomic_path(directory / shard_name(shard)) as temporary:
                    link_or_copy(embeddings.directory / shard_name(shard), temporary)
                return True
        return False


def encode_rows(passages: PassageStore, encoder: PassageEncoder, start: int, stop: int) -> Float32:
    """Vectors (stop - start, D) of some rows, by one call of the encoder."""
    texts = list(chain.from_iterable(passages.batches(_TEXTS_AT_ONCE, start=start, stop=stop)))
    return encoder.encode_passages([p.title for p in texts], [p.text for p in texts])


def encode_corpus(
    place: Path,
    passages: PassageStore,
    encoder: PassageEncoder,
    dtype: VectorDtype,
    *,
    shard_rows: int = SHARD_ROWS,
    stored: StoredRows | None = None,
) -> EmbeddingShards:
    """Encode passages, showing progress; after a kill the next call continues behind the finished shards.

    Args:
        shard_rows: rows per shard, the most that a killed attempt loses.
        stored: passages that need not be encoded.
    """
    stored = stored or StoredRows(())
    header = Header(len(passages), encoder.identity.dim, dtype, shard_rows, encoder.identity)
    missing = begin_shards(place, header)
    total = int(stored.is_new(0, header.rows).sum())
    left = sum(int(stored.is_new(start, stop).sum()) for _, start, stop in missing)
    with Progress(total, "passages", "encode", initial=total - left) as progress:
        made_by = encoder.reporting(progress.update) if isinstance(encoder, ReportingEncoder) else encoder
        for shard, start, stop in missing:
            if stored.link_shard(place, header, shard):
                continue
            is_new = stored.is_new(start, stop)
            if is_new.all():
                vectors = encode_rows(passages, made_by, start, stop)
            else:
                vectors = stored.vectors(start, stop, header.dim)
                if is_new.any():
                    new = passages.get_many(np.flatnonzero(is_new) + start)
                    vectors[is_new] = made_by.encode_passages([p.title for p in new], [p.text for p in new])
            store_shard(place, shard, vectors)
            if made_by is encoder:  # it does not report its batches itself
                progress.update(int(is_new.sum()))
    return finish_shards(place)


def finish_shards(directory: Path) -> EmbeddingShards:
    """The embeddings, when all shards are written; what a killed process left half-written goes."""
    remove_temporaries(directory)
    return EmbeddingShards.open(directory)
