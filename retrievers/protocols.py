"""What a retriever is: questions in, hits out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rag.core.progress import StageTimer
from rag.core.types import Hit, Path

__all__ = ["PathRetriever", "Retriever"]


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages for questions."""

    def search(
        self, questions: Sequence[str], top_k: int, *, timer: StageTimer | None = None
    ) -> list[list[Hit]]:
        """Best passages of each question, best first, ties by passage id.

        Args:
            questions: B questions.
            top_k: most hits per question; there are fewer if fewer passages match or exist.
            timer: gets the time of each stage.

        Returns:
            B lists of hits in the order of the questions.
        """
        ...


@runtime_checkable
class PathRetriever(Retriever, Protocol):
    """A retriever that finds passages that answer a question together."""

    def search_both(
        self, questions: Sequence[str], top_k: int, *, timer: StageTimer | None = None
    ) -> tuple[list[list[Hit]], list[list[Path]]]:
        """What `search` returns, and the best paths of each question, best first, at most `top_k`."""
        ...
