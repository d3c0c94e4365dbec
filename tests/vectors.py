"""Embeddings on disk that tests make of vectors."""

from pathlib import Path

import numpy as np

from indexers.embeddings import EmbeddingShards, ShardLayout, missing_shards, store_shard
from indexers.settings import VectorDtype


def store_vectors(
    place: Path, vectors: np.ndarray, dtype: VectorDtype = "float32", shard_rows: int = 128
) -> EmbeddingShards:
    """Store vectors (n, D), in the shards that are missing."""
    layout = ShardLayout(*vectors.shape, dtype, shard_rows)
    for shard in missing_shards(place, layout):
        store_shard(place, layout, shard, vectors[shard.start : shard.stop])
    return EmbeddingShards.open(place, layout)
