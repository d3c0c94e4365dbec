"""Systems that can be evaluated: they retrieve passages, read them, or do both, as `Pipeline` does."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rag.core.types import AnswerSet, Hit, Passage
from readers.paths import read_answers
from readers.protocols import Reader

Retrieved = Sequence[tuple[Hit, Passage]]
Paths = Sequence[Retrieved]  # the paths of one question, each with its passages in hop order


@runtime_checkable
class RetrievesPassages(Protocol):
    """Retrieves passages; a system that also finds paths has `retrieve_paths`, which returns both."""

    def retrieve(self, questions: Sequence[str], top_k: int) -> Sequence[Retrieved]:
        """The best passages of each question, best first."""


@runtime_checkable
class ReadsPassages(Protocol):
    """Reads given passages, so that a question is searched once and gold passages can be read too."""

    def read(self, questions: Sequence[str], retrieved: Sequence[Retrieved], n_best: int) -> list[AnswerSet]:
        """One answer set per question; it also gets `paths` if there are any."""


class AnswersQuestions(RetrievesPassages, ReadsPassages, Protocol):
    """Retrieves passages and reads them, as a pipeline with a reader does."""


def retrieve_paths(
    system: RetrievesPassages, questions: Sequence[str], top_k: int
) -> tuple[Sequence[Retrieved], Sequence[Paths]]:
    """The best passages of each question and its paths, if the system finds such."""
    both = getattr(system, "retrieve_paths", None)
    if both is None:
        return system.retrieve(questions, top_k), [()] * len(questions)
    found: tuple[Sequence[Retrieved], Sequence[Paths]] = both(questions, top_k)
    return found


def read_paths(
    system: ReadsPassages,
    questions: Sequence[str],
    retrieved: Sequence[Retrieved],
    n_best: int,
    paths: Sequence[Paths],
) -> list[AnswerSet]:
    """Call `ReadsPassages.read`, with the paths if there are any."""
    known: dict[str, Any] = {"paths": paths} if any(paths) else {}
    return system.read(questions, retrieved, n_best, **known)


class GoldReader:
    """A reader alone, for gold passages."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.identity: dict[str, Any] = {"reader": getattr(reader, "name", type(reader).__name__)}

    def read(self, questions: Sequence[str], retrieved: Sequence[Retrieved], n_best: int) -> list[AnswerSet]:
        """Answers from the passages given; questions without passages get none."""
        paths: list[Paths] = [()] * len(questions)
        return read_answers(self.reader, questions, retrieved, paths, n_best, index_version="")
