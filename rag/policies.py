"""Policies decide what happens next: search on, read, or answer.

Above retriever and reader stands one loop, `run`. It asks a policy about the state of each
question, does what the policy says for all questions together, and asks again until every question
is answered. A policy knows neither the retriever nor the reader: `Pipeline.ask(…, policy=…)` takes
any object with a `step`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from rag.core.errors import ConfigError
from rag.core.types import AnswerSet, Hit, Passage, Paths, RankedPassages
from readers.llm.prompt import fence_passages
from readers.llm.reader import Completer

_MOST_STEPS = 32
GREETING = re.compile(
    r"\W*(?:(?:hello|hi|hey|good (?:morning|afternoon|evening|day)|thanks|thank you|bye|goodbye|ok|okay)"
    r"(?: there| again| very much| so much)?\W*)+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Passages of one search, best first, and the paths of a multi-hop retriever."""

    query: str
    passages: RankedPassages
    paths: Paths = ()


@dataclass(frozen=True, slots=True)
class State:
    """A question, every search for it so far, and the answers of every reading so far.

    Attributes:
        context: the question that this one follows up on, or "".
    """

    question: str
    context: str = ""
    searches: tuple[SearchResult, ...] = ()
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


class Policy(Protocol):
    """Decides on the next step of a question."""

    def step(self, state: State) -> Search | Read | Finish:
        """The next step. It depends on the state alone: several questions are answered in turn."""


SearchAll = Callable[[Sequence[str]], tuple[Sequence[RankedPassages], Sequence[Paths]]]
ReadAll = Callable[[Sequence[str], Sequence[RankedPassages], Sequence[Paths]], Sequence[AnswerSet]]


def run(
    policy: Policy, questions: Sequence[str], search: SearchAll, read: ReadAll, *, context: str = ""
) -> list[tuple[State, AnswerSet]]:
    """Answer questions by a policy; searches and readings of all questions are done together.

    Args:
        context: the question that all of these follow up on, or "".
        search: queries → passages and paths of each.
        read: questions, passages and paths → answers of each.

    Returns:
        The last state of each question, and its answer.

    Raises:
        ConfigError: the policy comes to no end.
    """
    states = [State(question, context) for question in questions]
    finished: dict[int, AnswerSet] = {}
    for _ in range(_MOST_STEPS):
        queries, readings = list[tuple[int, str]](), list[tuple[int, SearchResult]]()
        for n, state in enumerate(states):
            step = policy.step(state) if n not in finished else None
            if isinstance(step, Finish):
                finished[n] = step.answers
            elif isinstance(step, Search):
                queries += [(n, query) for query in step.queries]
            elif isinstance(step, Read):
                readings += [(n, result) for result in step.searches]
        if queries:
            results = zip(queries, *search([query for _, query in queries]), strict=True)
            for (n, query), passages, paths in results:
                more = SearchResult(query, passages, paths)
                states[n] = replace(states[n], searches=(*states[n].searches, more))
        if readings:
            parts = [(result.query, result.passages, result.paths) for _, result in readings]
            answers = read(*map(list, zip(*parts, strict=True)))
            for (n, _), answer in zip(readings, answers, strict=True):
                states[n] = replace(states[n], answers=(*states[n].answers, answer))
        if len(finished) == len(questions):
            return [(state, finished[n]) for n, state in enumerate(states)]
    what = f"{type(policy).__name__} gave no answer in {_MOST_STEPS} steps"
    raise ConfigError(what, hint="return Finish once there are answers")


class SearchOnce:
    """Search, by one hop or several as the retriever does, and read what was found for the question
    alone.

    A greeting is no question: nothing is searched.
    """

    def step(self, state: State) -> Search | Read | Finish:
        """See `Policy`."""
        if GREETING.fullmatch(state.question):
            return Finish(AnswerSet(state.question, (), 1.0, notice="a greeting asks for nothing"))
        if not state.searches:
            return Search((state.query,))
        if not state.answers:
            return Read((replace(state.searches[0], query=state.question),))
        return Finish(state.answers[0])


_TASK = (
    "You search for what a question needs. If the passages do not suffice to answer it, reply with one line: "
    "SEARCH: and the words to search for next. If they do, reply with ENOUGH."
)
_NEXT_SEARCH = re.compile(r"^\W*search:\s*(\S.*)$", re.IGNORECASE | re.MULTILINE)


class SearchAgain:
    """A language model says after each search what else to look for; then everything that was found
    is read.

    Args:
        model: continues a chat, such as `completer` of a language model's reader.
        most: searches beside the first.
        shown: passages that the model sees, the best of each search in turn.

    Source: Trivedi et al. 2023, "Interleaving Retrieval with Chain-of-Thought Reasoning for
    Knowledge-Intensive Multi-Step Questions" (IRCoT), section 3.

    Note:
        The paper searches for each sentence of a chain of thought; here the model words the query
        itself.
    """

    def __init__(self, model: Completer, *, most: int = 2, shown: int = 8) -> None:
        self._model, self._most, self._shown = model, most, shown

    def step(self, state: State) -> Search | Read | Finish:
        """See `Policy`."""
        if not state.searches:
            return Search((state.query,))
        if state.answers:
            return Finish(state.answers[-1])
        everything = merged([search.passages for search in state.searches])
        if len(state.searches) <= self._most:
            shown = [passage for _, passage in everything[: self._shown]]
            task, passages = fence_passages(state.query, shown)
            messages = [
                {"role": "system", "content": task + _TASK},
                {"role": "user", "content": passages},
            ]
            request = _NEXT_SEARCH.search(self._model.complete(messages, 64).text)
            if request and request[1] not in [search.query for search in state.searches]:
                return Search((request[1],))
        return Read((SearchResult(state.question, everything),))


def merged(lists: Sequence[RankedPassages]) -> RankedPassages:
    """The passages of several searches, the best of each in turn, once each; scores are minus their
    ranks.
    """
    in_turn = (pair for row in zip_longest(*lists) for pair in row if pair is not None)
    unique = dict[str, tuple[Hit, Passage]]()
    for hit, passage in in_turn:
        unique.setdefault(passage.id, (hit, passage))
    return [
        (replace(hit, score=-float(n)), passage) for n, (hit, passage) in enumerate(unique.values())
    ]
