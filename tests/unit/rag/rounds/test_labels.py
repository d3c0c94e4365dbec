"""Depth rules over rankings, written by hand."""

from collections import Counter

import pytest
from pydantic import ValidationError

from rag.core.types import Passage
from rag.data.examples import Candidate, Example
from rag.rounds.labels import guided_examples
from retrievers.negatives.settings import GuidanceSettings


def ranked(holding: set[int], depth: int = 40) -> Example:
    found = [Passage(str(n), "", f"text {n} {'danube' if n in holding else ''}") for n in range(depth)]
    candidates = tuple(Candidate(passage, "retrieved") for passage in found)
    return Example("q", "which?", ("Danube",), candidates)


def positives(rules: str, holding: set[int]) -> list[str]:
    made = list(guided_examples([ranked(holding)], GuidanceSettings(positives=rules), Counter()))
    assert [example.id for example in made] == [f"q#{n + 1}" if n else "q" for n in range(len(made))]
    assert all({p.id for p in e.positives} == {e.positives[0].id for e in made} for e in made)
    return [example.positives[0].id for example in made]


@pytest.mark.parametrize(
    ("rules", "holding", "taken"),
    [
        ("3,10", {1, 4, 8, 9, 20}, ["1", "4", "8"]),
        ("3,5", {1, 4, 8}, ["1", "4"]),
        ("1,5 1,30", {20, 25}, ["20"]),  # rules are joined by or
        ("2,5 1,30", {1, 20}, ["1"]),
        ("3,10", {20}, []),
    ],
)
def test_rules_of_depth(rules: str, holding: set[int], taken: list[str]) -> None:
    assert positives(rules, holding) == taken


def test_negatives_hold_no_answer_and_a_share_is_near() -> None:
    settings, depth = GuidanceSettings(positives="1,40", negatives=40), 1200
    holding = {3, 5, 35}
    (made,) = guided_examples([ranked(holding, depth)], settings, Counter())
    drawn = [int(negative.passage.id) for negative in made.negatives]
    assert drawn == sorted(drawn)
    assert len(drawn) == 40
    assert not holding & set(drawn)
    assert max(drawn) < 1000
    assert 20 <= sum(place < 100 for place in drawn) < 32  # half, and a tenth of the others
    assert list(guided_examples([ranked(holding, depth)], settings, Counter())) == [made]


def test_expressions_and_questions_nothing_answers_are_told_and_counted() -> None:
    counts: Counter[str] = Counter()
    asked = [
        Example("a", "?", ("danx[au]be",), ranked({2}).candidates, answers_are_regex=True),
        Example("b", "?", ("dan[au",), ranked({2}).candidates, answers_are_regex=True),
        Example("c", "?", ("yes",), ranked({2}).candidates),
        Example("d", "?", (), ranked({2}).candidates),
    ]
    settings = GuidanceSettings(positives="1,40", negatives=3)
    assert [e.id for e in guided_examples(asked, settings, counts)] == []
    asked[0] = Example("a", "?", ("danub[ae]",), ranked({2}).candidates, answers_are_regex=True)
    (made,) = guided_examples(asked[:1], settings, counts)
    assert made.answers_are_regex
    assert (counts["questions"], counts["without answers"], counts["no passage holds an answer"]) == (5, 2, 2)
    assert (counts["positives"], counts["negatives"]) == (1, 3)


def test_copies_of_a_positive_are_no_negatives() -> None:
    example = ranked({0}, depth=3)
    regex = Example("q", "?", ("danube$",), example.candidates, answers_are_regex=True)
    spaced = Candidate(Passage("copy", "", "text  0 danube "), "retrieved")
    (made,) = guided_examples(
        [Example("q", "?", ("danube$",), (*regex.candidates, spaced), answers_are_regex=True)],
        GuidanceSettings(positives="1,4", negatives=4),
        Counter(),
    )
    assert [negative.passage.id for negative in made.negatives] == ["1", "2"]


@pytest.mark.parametrize("rules", ["", "3", "5,3", "0,3", "a,b", "3;50"])
def test_rules_that_cannot_be_are_refused(rules: str) -> None:
    with pytest.raises(ValidationError, match="expected rules b,k"):
        GuidanceSettings(positives=rules)
