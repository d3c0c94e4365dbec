"""Systems that can be evaluated: they retrieve passages and read them, or read gold passages."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rag.core.types import AnswerSet, Paths, RankedPassages
from readers.paths import read_answers
from readers.protocols import Reader


class ReadsPassages(Protocol):
    """Reads given passages, so that a question is searched once and gold passages can be read too."""

    @property
    def reader(self) -> Reader | None:
        """None if it only retrieves."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Retriever, reader, models with their hashes, index version."""

    def read(
        self,
        questions: Sequence[str],
        found: Sequence[RankedPassages],
        n_best: int,
        paths: Sequence[Paths] = (),
    ) -> list[AnswerSet]:
        """One answer set per question."""


@runtime_checkable
class AnswersQuestions(ReadsPassages, Protocol):
    """Retrieves passages and reads them, as a pipeline with a reader does."""

    def retrieve_paths(
        self, questions: Sequence[str], top_k: int
    ) -> tuple[Sequence[RankedPassages], Sequence[Paths]]:
        """The best passages of each question, best first, and its paths, if the system finds such."""


class GoldReader:
    """A reader alone, for gold passages."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.identity = {"reader": getattr(reader, "name", type(reader).__name__), "index_version": ""}

    def read(
        self,
        questions: Sequence[str],
        found: Sequence[RankedPassages],
        n_best: int,
        paths: Sequence[Paths] = (),
    ) -> list[AnswerSet]:
        """Answers from the passages given; questions without passages get none."""
        return read_answers(self.reader, questions, found, paths or [()] * len(questions), n_best, "")
