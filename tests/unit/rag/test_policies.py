"""One loop asks a policy what to do next: the usual one, and others that are written from outside."""

from collections.abc import Sequence

import pytest

import rag
from rag.answering import AnswerOptions, Outcome, answer_questions
from rag.core.errors import ConfigError, ReaderError
from rag.core.types import Answer, AnswerSet, Hit, Passage, SearchResult
from rag.policies import (
    Finish,
    Policy,
    Search,
    SearchOnce,
    State,
    Step,
    merge_in_turn,
)
from readers.protocols import Reader, ReadRequest
from tests.support.messages import refusal

TEXTS = {
    "danube": Passage("danube", "Danube", "The Danube rises in Germany."),
    "germany": Passage("germany", "Germany", "The capital of Germany is Berlin."),
}
ASKED = "What is the capital of the country where the Danube rises?"


class World(Reader):
    """Finds the passage that a query names, and reads the capital where it stands."""

    def __init__(self) -> None:
        self.searched: list[list[str]] = []
        self.read_calls: list[list[str]] = []

    def search(self, queries: Sequence[str], top_k: int, timer: object) -> list[SearchResult]:
        self.searched.append(list(queries))
        results = []
        for query in queries:
            named = [passage for name, passage in TEXTS.items() if name in query.lower()]
            results.append(SearchResult(query, [(Hit(0, p.id, 1.0), p) for p in named]))
        return results

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        self.read_calls.append([request.question for request in requests])
        answers = []
        for request in requests:
            numbers = [n for n, p in enumerate(request.passages) if "Berlin" in p.text]
            evidence = [request.evidence(number, (26, 32)) for number in numbers]
            given = tuple(Answer("Berlin", 1.0, 0.9, place) for place in evidence)
            answers.append(AnswerSet(request.question, given, 0.1 if given else 1.0))
        return answers


def run(policy: Policy, questions: Sequence[str], world: World, context: str = "") -> list[Outcome]:
    options = AnswerOptions(policy=policy, context=context)
    return answer_questions(questions, options, search=world.search, reader=world)


def test_all_questions_search_and_read_together() -> None:
    world = World()
    policy = SearchOnce()
    first, second = run(policy, [ASKED, "Capital of Germany?"], world)
    assert (first.presented.answers, second.presented.answers[0].text) == ((), "Berlin")
    assert world.searched == world.read_calls == [[ASKED, "Capital of Germany?"]]
    assert [result.query for result in first.state.searches] == [ASKED]
    assert run(policy, [], world) == []
    greeted = policy.step(State("Hello!"))
    assert isinstance(greeted, Finish)
    assert "greeting" in greeted.answers.notice
    assert isinstance(policy.step(State("Who wrote Hello?")), Search)


BEFORE = "Who wrote Frankenstein?"
AFTER = "When was it published?"


def test_a_follow_up_is_searched_for_with_the_question_before_it_and_read_alone() -> None:
    world = World()
    run(SearchOnce(), [f"{AFTER} Of Germany?"], world, context=BEFORE)
    assert world.searched == [[f"{BEFORE} {AFTER} Of Germany?"]]
    assert world.read_calls == [[f"{AFTER} Of Germany?"]]
    novel = (
        "Frankenstein is a novel. Mary Shelley wrote it, and it was published in 1818 in London."
    )
    with rag.Pipeline.from_texts([novel, "Faust was published in 1808."]) as pipeline:
        answer = pipeline.ask(AFTER, context=BEFORE)
    assert (answer.question, answer.answers[0].text) == (AFTER, "1818")


def test_passages_of_several_searches_come_in_turn_and_once() -> None:
    a, b, c = (Passage(name, "", name) for name in "abc")
    lists = [
        [(Hit(n, p.id, 9.0), p) for n, p in enumerate(result)] for result in ((a, b, c), (b, a), ())
    ]
    assert [(p.id, hit.score) for hit, p in merge_in_turn(lists)] == [
        ("a", 0.0),
        ("b", -1.0),
        ("c", -2.0),
    ]


class ForEver(Policy):
    """Searches for one query, again and again."""

    def __init__(self, query: str) -> None:
        self.query = query

    def step(self, state: State) -> Search:
        return Search((self.query,))


@pytest.mark.parametrize("query", ["Germany", " ", "caf\ud800"])
def test_a_policy_that_never_finishes_or_searches_for_no_text_is_refused(query: str) -> None:
    with refusal(ConfigError):
        run(ForEver(query), [ASKED], World())


class Unreadable(World):
    """Cannot read questions about the Danube."""

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        if any("Danube" in request.question for request in requests):
            raise ReaderError("the model is away")
        return super().read(requests, n_best)


class SearchesLonger(SearchOnce):
    """Searches for a question about a capital twice, so that it is read a step later."""

    def step(self, state: State) -> Step:
        if state.question.startswith("Capital") and len(state.searches) == 1:
            return Search(("Germany again",))
        return super().step(state)


def test_a_question_that_cannot_be_read_does_not_end_its_batch() -> None:
    failed, answered = run(SearchesLonger(), [ASKED, "Capital of Germany?"], Unreadable())
    assert (failed.presented.failure, answered.presented.answers[0].text) == (
        "the model is away",
        "Berlin",
    )
    with refusal(ReaderError):
        run(SearchOnce(), [ASKED], Unreadable())


def test_words_as_they_come_are_those_of_one_question() -> None:
    pieces = list[str]()
    options = AnswerOptions(on_text=pieces.append)
    world = World()
    [outcome] = answer_questions(
        ["Capital of Germany?"], options, search=world.search, reader=world
    )
    # This reader quotes.
    assert (outcome.presented.answers[0].text, pieces) == ("Berlin", [])
    with refusal(ConfigError):
        answer_questions(["a", "b"], options, search=world.search, reader=world)
