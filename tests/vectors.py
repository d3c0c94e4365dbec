"""Embeddings on disk that tests make of vectors."""

from pathlib import Path

import numpy as np

from indexers.embeddings import EmbeddingShards, Header, begin_shards, store_shard
from indexers.protocols import EncoderIdentity
from indexers.settings import VectorDtype


def store_vectors(
    place: Path, vectors: np.ndarray, dtype: VectorDtype = "float32", shard_rows: int = 128
) -> EmbeddingShards:
    """Store vectors (n, D), in the shards that are missing."""
    rows, dim = vectors.shape
    for shard, start, stop in begin_shards(place, header_of(rows, dim, dtype, shard_rows)):
        store_shard(place, shard, vectors[start:stop])
    return EmbeddingShards.open(place)


def header_of(rows: int, dim: int, dtype: VectorDtype = "float32", shard_rows: int = 128) -> Header:
    """What such embeddings are."""
    toy = EncoderIdentity("toy", "aa", dim=dim)
    return Header(rows=rows, dim=dim, dtype=dtype, shard_rows=shard_rows, encoder=toy)
