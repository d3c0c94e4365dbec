"""Interfaces of retrievers (questions in, hits out) and of their parts: encoder, passages by
row.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from indexers.protocols import PassageEncoder, Selection
from rag.core.arrays import Float32
from rag.core.log import Timer
from rag.core.types import Hit, Passage, Path, Query

Selected = Selection | None
"""The passages that may be returned; None: all."""
HitLists = list[list[Hit]]
"""For each question its hits, best first."""


class TextEncoder(PassageEncoder, Protocol):
    """Encodes both sides, as `BiEncoder` does."""

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) float32 of questions, each with the passages of its earlier hops, in
        order.
        """


class Passages(Protocol):
    """Passages by row, such as a `PassageStore`."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int) -> Passage: ...
    def ids(self, rows: Sequence[int] | np.ndarray[Any, Any]) -> list[str]:
        """Ids of rows, in that order."""

    def get_many(self, rows: Sequence[int] | np.ndarray[Any, Any]) -> list[Passage]:
        """The passages in `rows`, in that order."""


class PairScorer(Protocol):
    """Scores pairs of question and passage, such as a cross-encoder or a late-interaction model."""

    @property
    def name(self) -> str:
        """Folder or hub name."""

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Scores (n,) of n pairs, larger is better, comparable within a question."""


@runtime_checkable
class Retriever(Protocol):
    """Finds passages for questions."""

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """Best passages of each question, best first, ties by passage id.

        Args:
            top_k: most hits per question; there are fewer if fewer passages match or exist.
            timer: gets the time of each stage.
            selected: the passages that may be returned; None: all. It changes no score of a
                passage.

        Returns:
            B lists of hits in the order of the questions.
        """


@runtime_checkable
class Member(Retriever, Protocol):
    """A retriever whose hits a hybrid fuses with those of others; derive from it for the default.

    Attributes:
        absent_score: score of the passages that a list lacks although it is shorter than `top_k`:
            0 for BM25, and for all that scores shared words, since such a passage shares none with
            the question. None: the list does not tell, as where an index of vectors looks at some
            of its passages alone; then they get the least score of the list.
    """

    absent_score: float | None = None


@runtime_checkable
class PathRetriever(Retriever, Protocol):
    """A retriever that also finds paths: sequences of passages that together answer a question."""

    def search_both(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> tuple[HitLists, list[list[Path]]]:
        """The result of `search`, and the best paths of each question, best first, at most
        `top_k`.
        """
