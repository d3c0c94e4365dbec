"""Policies decide what happens next: search on, read, or answer.

The loop of `rag.answering` asks a policy about the state of each question and does what the policy
says. A policy knows neither the retriever nor the reader.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import zip_longest

from rag.comparing import find_comparison
from rag.core.errors import ConfigError, ReaderError
from rag.core.log import get_logger
from rag.core.types import AnswerSet, Hit, Passage, PolicyName, RankedPassages, SearchResult
from rag.data.languages import ENGLISH
from rag.data.records import fault_of_question
from readers.llm.prompt import fence_passages
from readers.llm.reader import Completer, fit_messages
from readers.protocols import Reader, reader_name

log = get_logger(__name__)
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
    """Decides on the next step of a question.

    Attributes:
        max_concurrent: how many questions `step` may be called for at a time, from several threads;
            0 and 1: one after another.
    """

    max_concurrent: int = 0

    @abstractmethod
    def step(self, state: State) -> Step:
        """The next step; it depends on the state alone."""

    @property
    def identity(self) -> str:
        """All of the policy that confidences depend on: what is promised under another is void."""
        return type(self).__name__


def open_policy(name: PolicyName, reader: Reader | None) -> Policy:
    """The policy of a name.

    Raises:
        ConfigError: the policy needs a language model, and the reader is none.
    """
    if name == "once":
        if reader is None:
            return SearchOnce()
        return SearchOnce(reader.language, compares=reader.completer is None)
    if reader is None or reader.completer is None:
        found = "there is no reader" if reader is None else f"the reader is {reader_name(reader)}"
        raise ConfigError(
            f"the policy {name!r} asks a language model what to search for, and {found}",
            hint="give a language model as the reader, or leave the policy at once",
        )
    return SearchAgain(reader.completer, max_concurrent=reader.max_concurrent)


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
        return "SearchOnce, compares" if self._compares else "SearchOnce"


_TASK = (
    "You search for what a question needs. If the passages do not suffice to answer it, reply with "
    "one line: SEARCH: and the words to search for next. If they do, reply with ENOUGH."
)
_REPLY_TOKENS = 64
_NEXT_SEARCH = re.compile(r"^\W*search:\s*(\S.*)$", re.IGNORECASE | re.MULTILINE)


@dataclass
class SearchAgain(Policy):
    """A language model says after each search what else to look for; then everything that was found
    is read.

    A model that gives no reply is not asked again: what was found so far is read.

    Attributes:
        model: continues a chat, such as `completer` of a language model's reader.
        max_searches: searches beside the first.
        shown_passages: passages that the model sees at most, the best of each search in turn; fewer
            where its window is too small for them.
        max_concurrent: questions that the model is asked about at a time.

    Source: Trivedi et al. 2023, "Interleaving Retrieval with Chain-of-Thought Reasoning for
    Knowledge-Intensive Multi-Step Questions" (IRCoT), section 3.

    Note:
        The paper searches for each sentence of a chain of thought; here the model words the query
        itself.
    """

    model: Completer
    _: KW_ONLY
    max_searches: int = 2
    shown_passages: int = 8
    max_concurrent: int = 0

    def step(self, state: State) -> Step:
        """See `Policy`."""
        if not state.searches:
            return Search((state.query,))
        if state.answers:
            return Finish(state.answers[-1])
        everything = merge_in_turn([search.passages for search in state.searches])
        if len(state.searches) <= self.max_searches:
            query = self._next_query(state, everything)
            if query and query not in [search.query for search in state.searches]:
                return Search((query,))
        return Read((SearchResult(state.question, everything),))

    @property
    def identity(self) -> str:
        """See `Policy`."""
        return f"SearchAgain, {self.max_searches} searches, {self.shown_passages} shown"

    def _next_query(self, state: State, found: RankedPassages) -> str:
        """What the model wants to search for next; "" if the passages suffice."""
        best = [passage for _, passage in found[: self.shown_passages]]
        write = partial(_ask_what_to_search, state.query)
        fitting = fit_messages(self.model, write, best, _REPLY_TOKENS, least=0)
        if fitting is None:
            return ""
        messages, _ = fitting
        try:
            reply = self.model.complete(messages, _REPLY_TOKENS).text
        except ReaderError as error:
            log.warning("a language model did not say what to search for: %s", error.message)
            return ""
        request = _NEXT_SEARCH.search(reply)
        if request is None or fault_of_question(request[1]):
            return ""
        return request[1]


def _ask_what_to_search(question: str, passages: Sequence[Passage]) -> list[dict[str, str]]:
    task, content = fence_passages(question, passages)
    return [{"role": "system", "content": task + _TASK}, {"role": "user", "content": content}]


def merge_in_turn(lists: Sequence[RankedPassages]) -> RankedPassages:
    """The passages of several searches, the best of each in turn, without duplicates; the score of a
    passage is its new rank, from 0, negated.
    """
    in_turn = (pair for row in zip_longest(*lists) for pair in row if pair is not None)
    unique = dict[str, tuple[Hit, Passage]]()
    for hit, passage in in_turn:
        unique.setdefault(passage.id, (hit, passage))
    return [
        (replace(hit, score=-float(n)), passage) for n, (hit, passage) in enumerate(unique.values())
    ]
