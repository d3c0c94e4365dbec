"""Probes: vectors of pieces of passages, as long as questions, on which recall is measured.

They lie beside the embeddings, so that a FAISS index is built without the encoder.
"""

from pathlib import Path

import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.passages import PassageStore
from indexers.protocols import PassageEncoder
from rag.core.arrays import Float32, load_npy, save_npy

PROBES_NAME = "probes.npy"
_WORDS = 10


def save_probes(
    directory: Path, passages: PassageStore, encoder: PassageEncoder, count: int, seed: int
) -> None:
    """Store vectors of pieces of ten words from random passages, which are not in the index as
    such.
    """
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(passages), min(count, len(passages)), replace=False))
    texts = []
    for passage in passages.get_many(rows):
        words = passage.text.split() or passage.title.split() or [passage.id]
        start = int(generator.integers(0, max(len(words) - _WORDS, 0) + 1))
        texts.append(" ".join(words[start : start + _WORDS]))
    vectors = encoder.encode_passages([""] * len(texts), texts)
    save_npy(directory / PROBES_NAME, np.asarray(vectors, dtype=np.float32))


def read_probes(embeddings: EmbeddingShards) -> Float32:
    """Probes (n, D) stored beside the embeddings."""
    return load_npy(embeddings.directory / PROBES_NAME, dtype=np.float32)
