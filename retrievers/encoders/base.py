"""What encoders of every kind share: an identity, questions as texts, and whom they tell of their
progress.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32
from rag.core.types import Query


class Encoder(ABC):
    """Turns questions and passages into vectors; implements `retrievers.protocols.TextEncoder`.

    Attributes:
        identity: everything that decides which vector a text gets.
    """

    def __init__(self, identity: EncoderIdentity) -> None:
        self.identity = identity
        self._report: Callable[[int], None] = lambda count: None

    @property
    def dim(self) -> int:
        """Vector size D."""
        return self.identity.dim

    @abstractmethod
    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32 of passages, in order."""

    @abstractmethod
    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) float32 of questions with the passages retrieved for them so far, in
        order.
        """

    def encode_questions(self, questions: Sequence[str]) -> Float32:
        """Vectors (n, D) float32 of questions, in order."""
        return self.encode_queries(list(map(Query, questions)))

    def reporting(self, done: Callable[[int], None]) -> Self:
        """This encoder, but calling `done` with the number of texts of every batch that is
        finished.
        """
        reporting = copy.copy(self)
        reporting._report = done
        return reporting
