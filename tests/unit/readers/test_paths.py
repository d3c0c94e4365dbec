"""Passages of paths are scored and read as such; facts are chosen; citations and notes reach the
answer.
"""

import numpy as np
import pytest

from rag.cli.show import format_answer_set
from rag.core.errors import ConfigError
from rag.core.types import Answer, AnswerSet, Evidence, FirstStage, Hit, Passage
from readers.paths import FactPassage, choose_facts, hop_scores, with_paths
from readers.protocols import MAX_PASSAGE_CHARS, ReadRequest
from tests.support.messages import refusal

DANUBE = Passage("d", "Danube", "The Danube is long. It rises in Germany.")
GERMANY = Passage("g", "Germany", "A state in Europe. Its capital is Berlin.")
ULM = Passage("u", "Ulm", "A city on the Danube.")


def steps(*passages: Passage) -> list[tuple[Hit, Passage]]:
    return [(Hit(n, passage.id, 1.0 - n / 10), passage) for n, passage in enumerate(passages)]


def answer_of(passage: Passage, text: str) -> AnswerSet:
    at = passage.text.index(text)
    evidence = Evidence.of(passage, 0.0, (at, at + len(text)))
    return AnswerSet("Of the Danube?", (Answer(text, 1.0, 0.9, evidence),), 0.1)


def test_passages_that_end_a_path_are_likelier_to_answer() -> None:
    ranked = steps(DANUBE, GERMANY, ULM)
    paths = [steps(DANUBE, ULM), steps(DANUBE, GERMANY)]
    assert hop_scores("Of the Danube?", ranked, paths) == pytest.approx([-1.1, -np.log(2), 0.0])
    assert ReadRequest("Of the Danube?", ranked, paths).has_paths
    assert not ReadRequest("Of the Danube?", ranked, [steps(DANUBE), steps(ULM)]).has_paths
    found = answer_of(DANUBE, "Danube")
    assert with_paths(found, [steps(DANUBE), steps(ULM)]).answers[0].path == ()
    assert len(with_paths(found, paths).answers[0].path) == 2


def test_a_request_knows_the_scores_before_re_ranking() -> None:
    judged = Hit(0, "a", 7.5, FirstStage(2, 0.25))
    ranked = [
        (judged, Passage("a", "", "A text.")),
        (Hit(1, "b", 3.0), Passage("b", "", "Another.")),
    ]
    request = ReadRequest("Which?", ranked)
    assert request.scores == [7.5, 3.0]
    assert request.first_stage_scores == [0.25, 3.0]
    evidence = request.evidence(0, (0, 1))
    assert (evidence.score, evidence.first_stage) == (7.5, judged.first_stage)


def test_text_that_is_too_long_to_read_is_still_evidence() -> None:
    long = Passage("long", "", "x" * (MAX_PASSAGE_CHARS + 5))
    request = ReadRequest.of("Which?", [long])
    assert len(request.passages[0].text) == MAX_PASSAGE_CHARS
    assert request.evidence(0).text == long.text
    with refusal(ConfigError):
        ReadRequest.of("Which?", [long], [1.0, 2.0])


def test_citations_notes_and_failures_are_shown() -> None:
    evidence = Evidence.of(GERMANY, 0.0)
    cited = (evidence, Evidence.of(DANUBE, 0.0, (4, 10)))
    answer = Answer(
        "Danube", 1.0, 0.1, evidence, citations=cited, is_supported=False, note="beware"
    )
    printed = format_answer_set(AnswerSet("p", (answer,), 0.9).to_json(), colour=False)
    assert f"also cited: {DANUBE.title}" in printed
    assert "beware: beware" in printed
    fails = AnswerSet("q", (), 1.0, failure="HTTP 500")
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
