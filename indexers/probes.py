"""Probes: queries on which the recall of an index is measured; stored beside the embeddings."""

from pathlib import Path

import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.passages import PassageStore
from indexers.protocols import PassageEncoder
from rag.core.arrays import Float32
from rag.core.npy import load_npy, save_npy

PROBES_NAME = "probes.npy"
_PROBE_WORDS = 10


def save_probes(
    directory: Path, passages: PassageStore, encoder: PassageEncoder, count: int, seed: int
) -> None:
    """Store vectors of pieces of ten words from random passages beside the embeddings.

    They are as long as questions, and not in the index as such. With them the FAISS stage needs no encoder.
    """
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(passages), min(count, len(passages)), replace=False))
    texts = []
    for passage in passages.get_many(rows):
        words = passage.text.split() or passage.title.split() or [passage.id]
        start = int(generator.integers(0, max(len(words) - _PROBE_WORDS, 0) + 1))
        texts.append(" ".join(words[start : start + _PROBE_WORDS]))
    vectors = encoder.encode_passages([""] * len(texts), texts)
    save_npy(directory / PROBES_NAME, np.asarray(vectors, dtype=np.float32))


def read_probes(embeddings: EmbeddingShards) -> Float32:
    """Probes (n, D) stored beside the embeddings."""
    path = embeddings.directory / PROBES_NAME
    size_bytes = path.stat().st_size if path.exists() else 0
    return load_npy(
        path, dtype=np.float32, shape=((size_bytes - 128) // (4 * embeddings.dim), embeddings.dim)
    )
