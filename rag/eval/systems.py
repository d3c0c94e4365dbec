"""What is evaluated: anything that retrieves and, if it can, answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from rag.core.types import AnswerSet, Hit, Passage
from readers.paths import read_answers
from readers.protocols import Reader

__all__ = ["AsksQuestions", "Paths", "ReadsPassages", "RetrieveThenRead", "RetrievesPassages", "Retrieved"]

Retrieved = Sequence[tuple[Hit, Passage]]
Paths = Sequence[Retrieved]  # of one question, each with its passages in hop order


@runtime_checkable
class RetrievesPassages(Protocol):
    """Finds passages. Enough for the retrieval figures."""

    def retrieve(self, questions: Sequence[str], top_k: int) -> Sequence[Retrieved]:
        """The best passages of each question, best first."""
        ...


@runtime_checkable
class AsksQuestions(Protocol):
    """Answers by retrieving and reading on its own."""

    def ask(self, questions: Sequence[str], *, top_k: int, n_best: int) -> list[AnswerSet]:
        """One answer set a question."""
        ...


@runtime_checkable
class ReadsPassages(Protocol):
    """Reads passages it is given: saves a second retrieval, and is needed for the gold-passage oracle."""

    def read(self, questions: Sequence[str], retrieved: Sequence[Retrieved], n_best: int) -> list[AnswerSet]:
        """One answer set a question, from the passages given."""
        ...


@dataclass(slots=True)
class RetrieveThenRead:
    """A retriever and a reader as one system.

    Attributes:
        search: questions and top_k → hits with their passages.
        reader: questions and passages → spans; None for retrieval only.
        index_version: goes into the answers and the report.
        identity: whatever names the system in the report: retriever, models and their hashes.
        search_paths: as `search`, with the paths of each question, the best first; None if it finds none.

    Example:
        `RetrieveThenRead(pipeline.retrieve, pipeline.reader, pipeline.index_version)`
    """

    search: Callable[[Sequence[str], int], Sequence[Retrieved]]
    reader: Reader | None = None
    index_version: str = ""
    identity: Mapping[str, Any] = field(default_factory=dict)
    search_paths: Callable[[Sequence[str], int], tuple[Sequence[Retrieved], Sequence[Paths]]] | None = None

    def retrieve(self, questions: Sequence[str], top_k: int) -> Sequence[Retrieved]:
        """The best passages of each question, best first."""
        return self.search(questions, top_k)

    @property
    def can_answer(self) -> bool:
        """Whether there is a reader."""
        return self.reader is not None

    def read(
        self,
        questions: Sequence[str],
        retrieved: Sequence[Retrieved],
        n_best: int,
        paths: Sequence[Paths] = (),
    ) -> list[AnswerSet]:
        """Answers from the passages given, or from paths of them; questions without passages get none."""
        if self.reader is None:
            return []
        started = time.perf_counter()
        of_questions = paths or [()] * len(questions)
        found = read_answers(self.reader, questions, retrieved, of_questions, n_best, self.index_version)
        timings_ms = {"read": (time.perf_counter() - started) * 1000.0}
        return [replace(answers, timings_ms=timings_ms) for answers in found]
