"""Interfaces of this package: passage encoders, their identity, and vector search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from indexers.embedding_shards import EmbeddingShards
from indexers.identity import EncoderIdentity as EncoderIdentity
from indexers.passages import PassageStore
from indexers.selected import Selection
from indexers.settings import VectorDtype
from rag.core.arrays import Float32, Int64


@runtime_checkable
class PassageEncoder(Protocol):
    """Turns passages into vectors. It gets whole shards, so it may sort them by length."""

    @property
    def dim(self) -> int:
        """Vector size D."""

    @property
    def identity(self) -> EncoderIdentity:
        """The identity of the encoder, stored with every artefact of its vectors."""

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32, in the order of the arguments.

        The vector of a passage must depend on the arguments of this one call only: equal calls
        give equal bytes, in another process too.
        """


@runtime_checkable
class ReportingEncoder(PassageEncoder, Protocol):
    """A passage encoder that reports its progress within a call."""

    def reporting(self, done: Callable[[int], None]) -> PassageEncoder:
        """This encoder, but calling `done` with the number of texts after every batch."""


class EncodesCorpus(Protocol):
    """Encodes all passages, in this process (`encode_corpus`) or on other machines (`rag.scale`)."""

    def __call__(
        self,
        place: Path,
        passages: PassageStore,
        encoder: PassageEncoder,
        dtype: VectorDtype,
        *,
        shard_rows: int = ...,
    ) -> EmbeddingShards:
        """Vectors of all passages in `place`; an interrupted run is resumed there. See `encode_corpus`."""


@runtime_checkable
class VectorIndex(Protocol):
    """Maximum-inner-product search over rows of an index."""

    @property
    def dim(self) -> int:
        """Vector size D."""

    def __len__(self) -> int:
        """Number of rows."""

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """Best rows for each query.

        Args:
            queries: (n, D) float32.
            top_k: results wanted per query; may exceed the number of rows.
            selected: the rows that may be returned; None: all. Scores do not depend on it.

        Returns:
            Scores (n, top_k) float32 and rows (n, top_k) int64, best first, ties by row. Where there are
            fewer results, the last places have row -1 and score -inf.
        """
