"""Passages of paths are scored and read as such; facts are chosen; citations and notes reach the
answer.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rag.cli.show import format_answer_set
from rag.core.types import Answer, AnswerSet, Evidence, FirstStage, Hit, Passage
from readers.answers import read_answers, search_scores
from readers.extractive.settings import ReaderSettings
from readers.paths import FactPassage, choose_facts, with_paths

DANUBE = Passage("d", "Danube", "The Danube is long. It rises in Germany.")
GERMANY = Passage("g", "Germany", "A state in Europe. Its capital is Berlin.")
ULM = Passage("u", "Ulm", "A city on the Danube.")


class Scripted:
    """Answers with the same words wherever they stand."""

    reads_paths = True

    def __init__(self, answer: str) -> None:
        self.answer, self.calls = answer, list[tuple[list[str], Any, bool]]()

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[Passage]],
        scores: Any,
        n_best: int = 5,
        *,
        from_paths: bool = False,
    ) -> list[AnswerSet]:
        self.calls.append(([passage.id for passage in passages[0]], scores, from_paths))
        results = []
        for question, own in zip(questions, passages, strict=True):
            places = [(p, p.text.index(self.answer)) for p in own if self.answer in p.text]
            evidence = [Evidence.of(p, 0.0, (at, at + len(self.answer))) for p, at in places]
            answers = tuple(Answer(self.answer, 1.0, 0.9, place) for place in evidence)
            results.append(AnswerSet(question, answers, 0.1))
        return results


def steps(*passages: Passage) -> list[tuple[Hit, Passage]]:
    return [(Hit(n, passage.id, 1.0 - n / 10), passage) for n, passage in enumerate(passages)]


def answer(reader: Any, paths: list[list[tuple[Hit, Passage]]]) -> AnswerSet:
    [result] = read_answers(
        reader, ["Of the Danube?"], [steps(DANUBE, GERMANY, ULM)], [paths], 5, "v"
    )
    return result


def test_passages_that_end_a_path_are_likelier_to_answer() -> None:
    reader = Scripted("Danube")
    answer(reader, [steps(DANUBE, ULM), steps(DANUBE, GERMANY)])
    assert reader.calls[0] == (["d", "g", "u"], [pytest.approx([-1.1, -np.log(2), 0.0])], True)
    result = answer(reader, [steps(DANUBE), steps(ULM)])
    assert reader.calls[1] == (["d", "g", "u"], [[1.0, 0.9, 0.8]], False)
    assert result.answers[0].path == ()
    both = [[steps(DANUBE, ULM)], []]
    mixed = read_answers(
        reader, ["p", "q"], [steps(DANUBE, ULM), steps(GERMANY, DANUBE)], both, 5, "v"
    )
    assert [call[0] for call in reader.calls[2:]] == [
        ["g", "d"],
        ["d", "u"],
    ]  # a call for each kind
    assert [item.answers[0].evidence.passage_id for item in mixed] == ["d", "d"]
    shown = [with_paths(item, own) for item, own in zip(mixed, both, strict=True)]
    assert [len(item.answers[0].path) for item in shown] == [2, 0]


def test_a_reader_that_counts_scores_in_gets_those_of_the_search() -> None:
    judged = Hit(0, "a", 7.5, FirstStage(2, 0.25))
    result = [
        (judged, Passage("a", "", "A text.")),
        (Hit(1, "b", 3.0), Passage("b", "", "Another.")),
    ]
    for weight, scores in ((0.0, [7.5, 3.0]), (20.0, [0.25, 3.0])):
        reader = SimpleNamespace(settings=ReaderSettings(score_weight=weight))
        assert search_scores(reader, result) == scores


def test_citations_notes_and_failures_reach_the_answer() -> None:
    class Cites:
        def read(self, questions: Any, *_: Any, **__: Any) -> list[AnswerSet]:
            own = Evidence.of(GERMANY, 0.0)
            cited = (own, Evidence.of(DANUBE, 0.0, (4, 10)))
            answer = Answer(
                "Danube", 1.0, 0.1, own, citations=cited, is_supported=False, note="beware"
            )
            return [AnswerSet("p", (answer,), 0.9), AnswerSet("q", (), 1.0, failure="HTTP 500")]

    result = [steps(DANUBE, GERMANY)] * 2
    cites, fails = read_answers(Cites(), ["p", "q"], result, [(), ()], 5, "v")
    shown = cites.to_json()["answers"][0]
    assert [evidence["passage_id"] for evidence in shown["citations"]] == [GERMANY.id, DANUBE.id]
    assert (shown["citations"][1]["start"], shown["is_supported"], shown["note"]) == (
        4,
        False,
        "beware",
    )
    assert fails.to_json()["failure"] == "HTTP 500"
    printed = format_answer_set(cites.to_json(), colour=False)
    assert f"also cited: {DANUBE.title}" in printed
    assert "beware: beware" in printed
    assert "not read: HTTP 500" in format_answer_set(fails.to_json(), colour=False)


QUESTION = "Which country is the director of Silent Harbour from?"
FILM = FactPassage(
    "Silent Harbour (film)",
    ["It is old.", "Silent Harbour is a film directed by Ada Moss."],
    score=3.0,
)
PERSON = FactPassage(
    "Ada Moss", ["Ada Moss is a director from Norway.", "She paints."], 1.0, 0.9, 0
)
NOISE = FactPassage("Harbour", ["A harbour is a place for ships.", "Some are busy."], score=2.0)


def test_the_pair_that_names_each_other_is_chosen() -> None:
    assert choose_facts(QUESTION, [FILM, NOISE, PERSON]) == [(0, 1), (2, 0)]


def test_the_pair_that_a_retriever_took_for_a_path_is_preferred() -> None:
    passages = [FactPassage(name, ["It is old."], 1.0) for name in "ABC"]
    assert choose_facts(QUESTION, passages, [[0, 2], [1, 2], [2, 1]]) == [(0, 0), (2, 0)]
    assert choose_facts(QUESTION, passages) == [(0, 0), (1, 0)]


def test_few_and_odd_passages() -> None:
    assert choose_facts(QUESTION, []) == []
    assert choose_facts(QUESTION, [PERSON]) == [(0, 0)]
    assert choose_facts(QUESTION, [FactPassage("", [" ", ""], 1.0)]) == []
    twice = [FILM, FactPassage(FILM.title, FILM.sentences, 2.0)]
    assert choose_facts(QUESTION, twice) == [(0, 1)]  # parts of one document are no pair
    assert choose_facts("?", [FILM, PERSON]) != []
    assert choose_facts(
        "Who is Ada Moss?", [FactPassage("Ada Moss", ["", "Ada Moss paints."], 1.0)]
    ) == [(0, 1)]
