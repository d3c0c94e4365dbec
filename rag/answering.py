"""The one way in which questions are answered, whether they are asked, served or evaluated.

A policy decides for each question what happens next: search, read or finish. The loop does what the
policies of all questions ask for together, so that questions share searches and forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from rag.core.errors import ConfigError, ReaderError
from rag.core.log import Timer, stage
from rag.core.types import AnswerSet, SearchResult
from rag.data.records import fault_of_question
from rag.metrics.calibration import checked_confidences
from rag.policies import Finish, Policy, Read, Search, SearchOnce, State
from readers.paths import with_paths
from readers.protocols import Reader, ReadRequest, TextSink

MAX_STEPS = 32
"""Steps of a policy after which it is taken for endless."""

Searcher = Callable[[Sequence[str], int, Timer], Sequence[SearchResult]]
"""Queries, a number of passages and a timer → the result of each query."""


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How questions are answered.

    Attributes:
        top_k: passages to search for.
        read: how many of these are read, the best; None: all.
        n_best: answers to return at most.
        policy: decides when to search and read; None: search once, and read.
        context: the question that all of these follow up on ("When was it published?"), or "":
            passages are searched for with both, and read for the question alone.
        on_text: gets the words of a reader that words its answers, as they come; for one question.
    """

    top_k: int = 20
    read: int | None = None
    n_best: int = 5
    policy: Policy | None = None
    context: str = ""
    on_text: TextSink | None = None

    def policy_for(self, reader: Reader) -> Policy:
        """The policy; by default the usual one for what the reader reads."""
        return self.policy or SearchOnce.of(reader)


class AskOptions(TypedDict, total=False):
    """The fields of `AnswerOptions` that a question may come with."""

    top_k: int
    n_best: int
    policy: Policy | None
    context: str
    on_text: TextSink | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A question after its last step.

    Attributes:
        state: its searches, readings and answers.
        short: the best answers in a few words, as official scorers compare them; None if nothing
            reads.
        presented: the same answers as people see them: a whole list, or sentences for yes or no.
        timings_ms: wall time of each stage for all questions of the call together.
    """

    state: State
    short: AnswerSet | None = None
    presented: AnswerSet | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def result(self) -> SearchResult:
        """The passages that were read last, or found first; none for a greeting."""
        results = self.state.readings[-1:] or self.state.searches[:1]
        return results[0] if results else SearchResult(self.state.question, ())

    def explained(self, reason: str) -> Outcome:
        """The outcome with a notice why nothing was read, if searches found no passage at all."""
        searches = self.state.searches
        found_any = any(result.passages for result in searches)
        if self.presented is None or self.presented.notice or not searches or found_any:
            return self
        return replace(self, presented=replace(self.presented, notice=reason))


def answer_questions(
    questions: Sequence[str],
    options: AnswerOptions,
    *,
    search: Searcher,
    reader: Reader | None,
    first_results: Sequence[SearchResult] | None = None,
    timer: dict[str, float] | None = None,
    failures: list[ReaderError] | None = None,
) -> list[Outcome]:
    """Answer questions by a policy; searches and readings of all questions are done together.

    Args:
        reader: None only searches, once.
        first_results: a search result of each question, such as its gold passages, in place of the
            policy's first search.
        timer: gets the time of each stage; the outcomes share it.
        failures: gets the errors of reading, and nothing is raised for them: the answers have a
            `failure`.

    Raises:
        ConfigError: the policy comes to no end, or searches for what is no question; or the words
            of several answers are asked for as they come.
        ReaderError: not a single question could be read; if only some could not, their answers have
            a `failure`.
    """
    if options.on_text is not None and len(questions) > 1:
        raise ConfigError(
            f"on_text is given for {len(questions)} questions, expected one",
            hint="ask one after another",
        )
    errors = list[ReaderError]() if failures is None else failures
    timings = {} if timer is None else timer
    states = [State(question, options.context) for question in questions]
    with stage(timings, "total"):
        if first_results is None and reader is None:
            with stage(timings, "retrieve"):
                first_results = search([state.query for state in states], options.top_k, timings)
        if first_results is not None:
            pairs = zip(states, first_results, strict=True)
            states = [replace(state, searches=(result,)) for state, result in pairs]
        if reader is None:
            return [Outcome(state, timings_ms=timings) for state in states]
        states, finished = _run(states, options, search, reader, timings, errors)
    if failures is None and errors and all(answers.failure for answers in finished):
        raise errors[0]
    outcomes = []
    for state, last in zip(states, finished, strict=True):
        answers = replace(last, timings_ms=timings)
        short = replace(answers, answers=answers.answers[: options.n_best])
        presented = reader.present(answers, options.n_best)
        outcomes.append(Outcome(state, short, presented, timings))
    return outcomes


def _run(
    states: Sequence[State],
    options: AnswerOptions,
    search: Searcher,
    reader: Reader,
    timer: dict[str, float],
    failures: list[ReaderError],
) -> tuple[list[State], list[AnswerSet]]:
    """The last state of each question, and the answers with which its policy finished."""
    policy = options.policy_for(reader)
    states = list(states)
    finished = dict[int, AnswerSet]()
    for _ in range(MAX_STEPS):
        searches, readings = _next_steps(policy, states, finished)
        if searches:
            with stage(timer, "retrieve"):
                results = search([query for _, query in searches], options.top_k, timer)
            for (n, _), result in zip(searches, results, strict=True):
                states[n] = replace(states[n], searches=(*states[n].searches, result))
        if readings:
            with stage(timer, "read"):
                answers = _read(reader, [result for _, result in readings], options, failures)
            for (n, result), answer in zip(readings, answers, strict=True):
                states[n] = replace(
                    states[n],
                    readings=(*states[n].readings, result),
                    answers=(*states[n].answers, answer),
                )
        if len(finished) == len(states):
            return states, [finished[n] for n in range(len(states))]
    raise ConfigError(
        f"{type(policy).__name__} gave no answer in {MAX_STEPS} steps",
        hint="return Finish once there are answers",
    )


def _next_steps(
    policy: Policy, states: Sequence[State], finished: dict[int, AnswerSet]
) -> tuple[list[tuple[int, str]], list[tuple[int, SearchResult]]]:
    """The queries and the readings that the policy asks for, each with the number of its question.

    A question that the policy finishes enters `finished`.
    """
    unfinished = [n for n in range(len(states)) if n not in finished]
    searches = list[tuple[int, str]]()
    readings = list[tuple[int, SearchResult]]()
    for n in unfinished:
        step = policy.step(states[n])
        if isinstance(step, Finish):
            finished[n] = step.answers
        elif isinstance(step, Search):
            _check_queries(policy, step.queries)
            searches += [(n, query) for query in step.queries]
        elif isinstance(step, Read):
            readings += [(n, result) for result in step.searches]
    return searches, readings


def _check_queries(policy: Policy, queries: Sequence[str]) -> None:
    for query in queries:
        fault = fault_of_question(query)
        if fault:
            raise ConfigError(
                f"a query of {type(policy).__name__} {fault}", hint="search for words in Unicode"
            )


def _read(
    reader: Reader,
    results: Sequence[SearchResult],
    options: AnswerOptions,
    failures: list[ReaderError],
) -> list[AnswerSet]:
    """The answers to the query of each result from its passages, with the paths they lie on.

    Where the reader fails, `failures` gets its error, and the answers say so.
    """
    n_best = max(reader.count_candidates(result.query, options.n_best) for result in results)
    requests = [
        ReadRequest(result.query, result.passages[: options.read], result.paths)
        for result in results
    ]
    # A question without passages has no answer; a reader need not see it.
    numbers = [n for n, request in enumerate(requests) if request.ranked]
    answers = [AnswerSet(request.question, (), 1.0) for request in requests]
    if not numbers:
        return answers
    try:
        if options.on_text is not None and len(numbers) == 1:
            read = [reader.stream(requests[numbers[0]], options.on_text, n_best)]
        else:
            read = reader.read([requests[n] for n in numbers], n_best)
    except ReaderError as error:
        failures.append(error)
        for n in numbers:
            answers[n] = replace(answers[n], failure=error.message)
        return answers
    for n, answer in zip(numbers, read, strict=True):
        # Refused here, and not after all questions of an evaluation.
        checked_confidences(
            [answer.no_answer_confidence, *(candidate.confidence for candidate in answer.answers)]
        )
        answers[n] = answer
        if requests[n].has_paths:
            answers[n] = with_paths(answer, requests[n].paths)
    return answers
