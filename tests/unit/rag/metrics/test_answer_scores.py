"""Answer and HotpotQA figures against the official scripts' outputs and independent
re-implementations."""

import re
import string
import unicodedata
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.errors import ConfigError, DataError
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
    precision, recall = 1.0 * same / len(predicted), 1.0 * same / len(expected)
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


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="profile 'squad3'"):
        em_and_f1("x", ["x"], "squad3")


Golds = dict[str, tuple[str, tuple[tuple[str, int], ...]]]
GOLDS: Golds = {
    "1": ("New York", (("A", 0), ("B", 1))),
    "2": ("yes", (("C", 0),)),
    "3": ("no", (("D", 0),)),
}


def hotpot_means(answers: Any, facts: Any, golds: Golds) -> dict[str, float]:
    """Over all questions, as the official script prints them."""
    rows = [score_hotpot(answers.get(key), facts.get(key), *gold) for key, gold in golds.items()]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


FACTS = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 2)).map(list), max_size=4)


@given(
    st.lists(st.tuples(st.none() | TEXT, st.none() | FACTS, TEXT, FACTS), min_size=1, max_size=5)
)
@settings(max_examples=100, deadline=None)
def test_hotpot_equals_running_sums(
    rows: list[tuple[str | None, list[list] | None, str, list[list]]],
) -> None:
    golds = {str(i): (a, tuple((t, n) for t, n in f)) for i, (_, _, a, f) in enumerate(rows)}
    answers = {str(i): p for i, (p, _, _, _) in enumerate(rows) if p is not None}
    facts = {str(i): s for i, (_, s, _, _) in enumerate(rows) if s is not None}
    sums: Counter[str] = Counter()
    for predicted, support, answer, gold_facts in rows:
        words = support_of = None
        if predicted is not None:
            np_, na = plain_normalize(predicted), plain_normalize(answer)
            closed = np_ != na and {np_, na} & {"yes", "no", "noanswer"}
            words = (float(np_ == na), *plain_overlap([] if closed else np_.split(), na.split()))
            sums.update(dict(zip(("em", "prec", "recall", "f1"), words, strict=True)))
        if support is not None:
            got, gold = {tuple(it) for it in support}, {tuple(it) for it in gold_facts}
            support_of = (float(got == gold), *plain_overlap(sorted(got), sorted(gold)))
            sums.update(
                dict(zip(("sp_em", "sp_prec", "sp_recall", "sp_f1"), support_of, strict=True))
            )
        if words and support_of:
            em, precision, recall = (a * b for a, b in zip(words[:3], support_of[:3], strict=True))
            both = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
            sums.update(joint_em=em, joint_prec=precision, joint_recall=recall, joint_f1=both)
    figures = hotpot_means(answers, facts, golds)
    for name, value in figures.items():
        assert value == pytest.approx(sums[name] / len(rows), abs=1e-12), name


def test_malformed_facts_are_refused() -> None:
    with pytest.raises(DataError, match="sentence index"):
        score_hotpot("x", [["A", "0"]], *GOLDS["1"])


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
