"""Policies decide what happens next: search on, read, or answer.

The loop of `rag.answering` asks a policy about the state of each question and does what the policy
says. A policy knows neither the retriever nor the reader.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Self

from rag.comparing import find_comparison
from rag.core.types import AnswerSet, Hit, Passage, RankedPassages, SearchResult
from rag.data.languages import ENGLISH
from readers.protocols import Reader

GREETING = re.compile(
    r"\W*(?:(?:hello|hi|hey|good (?:morning|afternoon|evening|day)|thanks|thank you|bye|goodbye|ok|okay)"
    r"(?: there| again| very much| so much)?\W*)+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class State:
    """A question, with every search, every reading and its answers so far.

    Attributes:
        context: the question that this one follows up on, or "".
        readings: what was read, one search result for each of `answers`.
    """

    question: str
    context: str = ""
    searches: tuple[SearchResult, ...] = ()
    readings: tuple[SearchResult, ...] = ()
    answers: tuple[AnswerSet, ...] = ()

    @property
    def query(self) -> str:
        """What to search for: a question that follows up on another needs the words of both."""
        return f"{self.context} {self.question}".strip()


@dataclass(frozen=True, slots=True)
class Search:
    """Search for each of these queries."""

    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Read the passages of each search for an answer to its query."""

    searches: tuple[SearchResult, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Give this answer."""

    answers: AnswerSet


Step = Search | Read | Finish


class Policy(ABC):
    """Decides on the next step of a question."""

    @abstractmethod
    def step(self, state: State) -> Step:
        """The next step; it depends on the state alone."""

    @property
    def identity(self) -> str:
        """All of the policy that confidences depend on: what is promised under another is void."""
        return type(self).__name__


class SearchOnce(Policy):
    """Search, by one hop or several as the retriever does, and read what was found for the question
    alone.

    A greeting is no question: nothing is searched. Where a question compares two things, the value
    of each is searched and read for beside it, and what was found for the question is read only if
    these do not decide.

    Args:
        language: of the passages; greetings and comparisons are known in English alone.
        compares: whether comparisons are taken apart.
    """

    def __init__(self, language: str = ENGLISH, *, compares: bool = True) -> None:
        self._is_english = language == ENGLISH
        self._compares = compares and self._is_english

    @classmethod
    def of(cls, reader: Reader) -> Self:
        """The policy for what a reader reads; a language model compares by itself."""
        return cls(reader.language, compares=reader.completer is None)

    def step(self, state: State) -> Step:
        """See `Policy`."""
        if self._is_english and GREETING.fullmatch(state.question):
            return Finish(AnswerSet(state.question, (), 1.0, notice="a greeting asks for nothing"))
        comparison = None
        # The passages of a path are read together.
        if self._compares and not any(search.paths for search in state.searches):
            comparison = find_comparison(state.question)
        values = comparison.questions if comparison else ()
        if not state.searches:
            return Search((state.query, *values))
        if comparison and not state.answers:
            # The only search is one of gold passages.
            found = [search.passages for search in state.searches[-2:]]
            first = SearchResult(values[0], merge_in_turn(found))
            return Read((first, SearchResult(values[1], merge_in_turn(found[::-1]))))
        if len(state.answers) == len(values):
            decided = comparison and comparison.decide(state.question, state.answers)
            if decided:
                return Finish(decided)
            return Read((replace(state.searches[0], query=state.question),))
        return Finish(state.answers[-1])

    @property
    def identity(self) -> str:
        """See `Policy`."""
        name = super().identity
        return f"{name}, compares" if self._compares else name


def merge_in_turn(lists: Sequence[RankedPassages]) -> RankedPassages:
    """The passages of several searches, the best of each in turn, without duplicates; the score of a
    passage is its new rank, from 0, negated.
    """
    in_turn = (pair for row in zip_longest(*lists) for pair in row if pair is not None)
    unique = dict[str, tuple[Hit, Passage]]()
    for hit, passage in in_turn:
        unique.setdefault(passage.id, (hit, passage))
    return [
        (replace(hit, score=float(-n)), passage) for n, (hit, passage) in enumerate(unique.values())
    ]
