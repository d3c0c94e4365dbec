"""Answer and HotpotQA figures against the official scripts' outputs and independent
re-implementations."""

import re
import string
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.metrics.answers import em_and_f1
from rag.metrics.kilt import evidence_sets, score_answers, score_pages
from rag.metrics.multihop import score_hotpot

WORDS = st.sampled_from(
    [
        "the",
        "a",
        "an",
        "The",
        "yes",
        "no",
        "noanswer",
        "U.S.",
        "US",
        "new-york",
        "New",
        "York",
        "10,000",
        "10000",
        "é",
        "é",
        "café",
        "“x”",
        "-",
        ",",
        ".",
        " ",
        "",
    ]
)
TEXT = st.lists(WORDS, max_size=5).map(" ".join)


def plain_normalize(text: str) -> str:
    """Character by character, without a translation table or regular expression for punctuation."""
    lowered = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", lowered).split())


def plain_overlap(predicted: list[Any], expected: list[Any]) -> tuple[float, float, float]:
    """Precision, recall and F1 of two multisets; 0 where they share nothing."""
    same = sum(min(predicted.count(it), expected.count(it)) for it in {*predicted})
    if not same:
        return 0.0, 0.0, 0.0
    precision = 1.0 * same / len(predicted)
    recall = 1.0 * same / len(expected)
    return precision, recall, (2 * precision * recall) / (precision + recall)


def plain_f1(prediction: str, answer: str) -> float:
    return plain_overlap(plain_normalize(prediction).split(), plain_normalize(answer).split())[2]


@given(TEXT, st.lists(TEXT, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_em_and_f1_equal_a_plain_implementation_to_the_last_digit(
    p: str, accepted: list[str]
) -> None:
    for profile in ("squad", "nq_open"):
        decompose = (
            (lambda s: unicodedata.normalize("NFD", s)) if profile == "nq_open" else (lambda s: s)
        )
        em, f1 = em_and_f1(p, accepted, profile)
        assert em == max(
            plain_normalize(decompose(p)) == plain_normalize(decompose(a)) for a in accepted
        )
        assert f1 == max(plain_f1(decompose(p), decompose(a)) for a in accepted)


def test_missing_predictions_score_zero_and_unanswerable_questions_nothing() -> None:
    assert em_and_f1(None, ["x"]) == (0.0, 0.0)
    assert np.isnan(em_and_f1("x", [])).all()
    assert em_and_f1("", ["the"])[0] == 1.0


FACTS = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 2)), max_size=4)


@given(st.none() | TEXT, st.none() | FACTS, TEXT, FACTS)
@settings(max_examples=300, deadline=None)
def test_hotpot_equals_a_plain_implementation(
    predicted: str | None,
    support: list[tuple[str, int]] | None,
    answer: str,
    gold_facts: list[tuple[str, int]],
) -> None:
    parts: dict[str, tuple[float, ...]] = {}
    if predicted is not None:
        given_text = plain_normalize(predicted)
        gold_text = plain_normalize(answer)
        closed = given_text != gold_text and {given_text, gold_text} & {"yes", "no", "noanswer"}
        given_words = [] if closed else given_text.split()
        same = float(given_text == gold_text)
        parts[""] = (same, *plain_overlap(given_words, gold_text.split()))
    if support is not None:
        found = {*support}
        gold = {*gold_facts}
        parts["sp_"] = (float(found == gold), *plain_overlap([*found], [*gold]))
    if len(parts) == 2:
        em, precision, recall = (
            a * b for a, b in zip(parts[""][:3], parts["sp_"][:3], strict=True)
        )
        both = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        parts["joint_"] = (em, precision, recall, both)
    for part in ("", "sp_", "joint_"):
        names = [f"{part}{name}" for name in ("em", "prec", "recall", "f1")]
        figures = score_hotpot(predicted, support, answer, gold_facts)
        assert [figures[name] for name in names] == pytest.approx(parts.get(part, (0.0,) * 4))


def test_kilt_treats_an_evidence_set_as_one_point_and_answers_need_it_perfect() -> None:
    provenance = [[{"wikipedia_id": page} for page in pages] for pages in ("ab", "c", "ba", "")]
    sets = evidence_sets(provenance)
    assert sets == [frozenset("ab"), frozenset("c")]
    result = score_pages(["a", "x", "c", "b"], sets, (1, 2, 3))  # points: [x, c, ab]
    assert list(result.values()) == [0.5, 0.0, 0.5, 1.0]  # {a, x} of {a, b}; {a} of {c}
    assert not any(score_pages([], sets, (5,)).values())
    right = score_answers("the paris", ["Paris"], 1.0)
    assert (right["em"], right["kilt_em"], right["accuracy"]) == (1.0, 1.0, 0.0)
    assert score_answers("the paris", ["Paris"], 0.0)["kilt_em"] == 0.0
