import hashlib
from collections.abc import Sequence

import numpy as np
import pytest

from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32
from rag.core.types import Query


class WordEncoder:
    """Deterministic: a passage is the normalised sum of pseudo-random vectors of its words."""

    def __init__(self, dim: int = 32, name: str = "words") -> None:
        self.dim = dim
        self.identity = EncoderIdentity(name, hashlib.sha256(name.encode()).hexdigest(), dim=dim)
        self.calls: list[int] = []

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        self.calls.append(len(texts))
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, (title, text) in enumerate(zip(titles, texts, strict=True)):
            for word in f"{title} {text}".lower().split():
                seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
                vectors[row] += (
                    np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)
                )
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Questions as passages without a title; those of later hops with the passages so far."""
        texts = [" ".join([item.question, *(p.text for p in item.passages)]) for item in queries]
        return self.encode_passages([""] * len(texts), texts)


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


def clustered(rows: int, dim: int) -> Float32:
    """Unit vectors (rows, dim) around random centres."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((40, dim))
    vectors = centres[generator.integers(0, 40, rows)] + 0.7 * generator.standard_normal(
        (rows, dim)
    )
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def make_encoder() -> type[WordEncoder]:
    return WordEncoder
