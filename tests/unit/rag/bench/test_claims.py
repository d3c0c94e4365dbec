"""Claims made of questions and of claims: what agrees with its evidence is supported."""

from collections import Counter

import pytest

from rag.bench.claims import make_claims
from rag.bench.statements import statement
from rag.core.types import GoldPassage, Passage, Question

_VERBS = frozenset(["live", "marry", "build", "take", "open"])


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("What city is home to the museum?", "Ulm", "Ulm is home to the museum."),
        ("What is the capital of Peru?", "Lima", "The capital of Peru is Lima."),
        ("When was the bridge built?", "1920", "The bridge was built in 1920."),
        ("On what date was it released?", "May 4, 1979", "It was released on May 4, 1979."),
        ("Where did Ann Lee live?", "in Bonn", "Ann Lee did live in Bonn."),
        ("Who did Ann Lee marry in 1900?", "Bo", "Ann Lee did marry Bo in 1900."),
        ("How many towers did the king build?", "nine", "The king did build nine towers."),
        ("The tower was built by whom?", "Ann Lee", "The tower was built by Ann Lee."),
        ("What was the first system called?", "Alpha", "The first system was called Alpha."),
        ("Were Ann and Bo both singers?", "yes", "Ann and Bo were both singers."),
        ("Why is the sky blue?", "light", ""),
        ("What was the park famous for?", "roses", ""),
    ],
)
def test_statements(question: str, answer: str, expected: str) -> None:
    assert statement(question, answer, _VERBS) == expected


def _questions() -> list[Question]:
    made = []
    for number in range(300):
        year = 1500 + number
        text = (
            f"The north tower was built in {year} by Ann Lee. It fell in {year + 77}, said Bo Ek."
        )
        gold = GoldPassage(Passage("", f"Tower {number}", text))
        answer = (str(year), "Ann Lee", "")[number % 3]
        asked = (
            "When was the north tower built?",
            "Who built the north tower?",
            "Who built walls?",
        )
        answers = (answer,) if answer else ()
        made.append(Question(str(number), asked[number % 3], answers, gold=(gold,)))
    return made


def test_claims_to_search_for_keep_their_evidence() -> None:
    for record in make_claims(_questions(), seed=3, facts=True):
        year = 1500 + int(str(record["id"]).removeprefix("made-"))
        assert "evidence" not in record
        if " not " not in str(record["claim"]) and f"built in {year}" in str(record["claim"]):
            assert record["label"] == "supported"


def test_labels_are_what_the_evidence_says() -> None:
    made = list(make_claims(_questions(), seed=3))
    assert made == list(make_claims(_questions(), seed=3))
    counts = Counter(record["label"] for record in made)
    assert min(counts["supported"], counts["refuted"], counts["not_enough"]) > 15
    exchanged = 0
    for record in made:
        evidence = " ".join(record["evidence"])
        is_negated = " not " in record["claim"]
        number = int(record["id"].removeprefix("made-"))
        year = record["claim"].rstrip(".").split()[-1]
        if record["label"] == "not_enough" or number % 3 != 0:
            continue
        agrees = f"built in {year}" in evidence
        assert (record["label"] == "supported") == (agrees != is_negated), record
        exchanged += f"built in {1500 + number}" not in evidence
    assert exchanged > 5
