"""Probe queries: what recall is measured on when an index is built."""

from __future__ import annotations

import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.npy import load_npy, save_npy
from indexers.passages import PassageStore
from indexers.protocols import FloatArray, PassageEncoder

__all__ = ["PROBES_NAME", "encode_probes", "probe_texts", "read_probes", "save_probes"]

PROBES_NAME = "probes.npy"
_PROBE_WORDS = 10


def probe_texts(passages: PassageStore, count: int, seed: int) -> list[str]:
    """Pieces of ten words from random passages: as long as questions, and not themselves in the index."""
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(passages), min(count, len(passages)), replace=False))
    texts = []
    for passage in passages.get_many(rows):
        words = passage.text.split() or passage.title.split() or [passage.id]
        start = int(generator.integers(0, max(len(words) - _PROBE_WORDS, 0) + 1))
        texts.append(" ".join(words[start : start + _PROBE_WORDS]))
    return texts


def encode_probes(passages: PassageStore, encoder: PassageEncoder, count: int, seed: int) -> FloatArray:
    """Vectors (n, D) of `probe_texts`, encoded as passages without a title."""
    texts = probe_texts(passages, count, seed)
    return np.asarray(encoder.encode_passages([""] * len(texts), texts), dtype=np.float32)


def save_probes(embeddings: EmbeddingShards, probes: FloatArray) -> None:
    """Keep probes beside the embeddings, so that the FAISS stage needs no encoder."""
    save_npy(embeddings.directory / PROBES_NAME, probes)


def read_probes(embeddings: EmbeddingShards) -> FloatArray | None:
    """Probes kept beside the embeddings, if any.

    Raises:
        ArtifactError: the file is damaged.
    """
    path = embeddings.directory / PROBES_NAME
    if not path.exists():
        return None
    count = (path.stat().st_size - 128) // (4 * embeddings.dim)
    return load_npy(path, dtype=np.float32, shape=(count, embeddings.dim))
