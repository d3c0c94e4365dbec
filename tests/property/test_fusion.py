"""Fusion against formulas written out one passage at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.errors import ConfigError
from rag.core.types import Hit
from retrievers.hybrid import Fusion

SCORES = st.floats(-100, 100, width=32)


@st.composite
def ranked(draw):
    rows = draw(st.lists(st.integers(0, 14), unique=True, max_size=10))
    scores = sorted(draw(st.lists(SCORES, min_size=len(rows), max_size=len(rows))), reverse=True)
    return [Hit(row, f"p{row:02d}", score) for row, score in zip(rows, scores, strict=True)]


LISTS = st.lists(ranked(), min_size=2, max_size=3)
WEIGHTS = st.floats(0, 4)


def brute_force(fusion, lists):
    totals = {}
    names = {hit.row: hit.passage_id for hits in lists for hit in hits}
    for row in names:
        total = 0.0
        for number, (weight, hits) in enumerate(zip(fusion.weights, lists, strict=True)):
            if fusion.method == "rrf":
                ranks = [rank for rank, hit in enumerate(hits, start=1) if hit.row == row]
                total += sum(weight / (fusion.k + rank) for rank in ranks)
            elif hits:
                values = [hit.score for hit in hits]
                low, high = min(values), max(values)
                score = next((hit.score for hit in hits if hit.row == row), low)
                if fusion.method == "std" and number == 0:
                    deviation = np.std(values) if high > low else 0.0
                    score = (score - np.mean(values)) / deviation if deviation > 0 else 0.0
                elif fusion.method == "minmax":
                    score = (score - low) / (high - low) if high > low else 1.0
                total += weight * score
        totals[row] = total
    return [(name, totals[row]) for row, name in names.items()]


@settings(max_examples=150, deadline=None)
@given(LISTS, st.data(), st.integers(1, 20), st.sampled_from(["rrf", "raw", "minmax", "std"]))
def test_scores_are_those_of_the_formula(lists, data, top_k, method):
    weights = tuple(data.draw(st.lists(WEIGHTS, min_size=len(lists), max_size=len(lists))))
    fusion = Fusion(method, weights)
    (fused,) = fusion.fuse([[hits] for hits in lists], top_k)
    expected = dict(brute_force(fusion, lists))
    assert len(fused) == min(top_k, len(expected))
    assert fused == sorted(fused, key=Hit.sort_key)
    for hit in fused:
        assert hit.score == pytest.approx(expected[hit.passage_id], abs=1e-9)
    if fused:
        kept = {hit.passage_id for hit in fused}
        left_out = [score for name, score in expected.items() if name not in kept]
        assert all(score <= fused[-1].score + 1e-9 for score in left_out)


def test_questions_stay_apart():
    first, second = [Hit(0, "a", 1.0)], [Hit(1, "b", 1.0)]
    fused = Fusion().fuse([[first, second], [[], second]], 5)
    assert [[hit.passage_id for hit in hits] for hits in fused] == [["a"], ["b"]]
    assert fused[1][0].score == pytest.approx(2 / 61)


def test_ties_at_the_cut_go_by_id():
    lists = [[[Hit(row, name, 1.0) for row, name in enumerate("dcba")]]]
    fused = Fusion("raw", (1.0,)).fuse(lists, 2)[0]
    assert [hit.passage_id for hit in fused] == ["a", "b"]


@pytest.mark.parametrize(
    ("spec", "fusion"),
    [
        ("minmax:0.7,0.3", Fusion("minmax", (0.7, 0.3))),
        ("std:1,0.6", Fusion("std", (1.0, 0.6))),
        ("raw:1,0.02", Fusion("raw", (1.0, 0.02))),
        ("rrf20:1,0.5", Fusion("rrf", (1.0, 0.5), 20.0)),
        ("rrf0.5:2,1,1", Fusion("rrf", (2.0, 1.0, 1.0), k=0.5)),
        ("rrf60:1,1", Fusion()),
        ("raw:1,0.00002", Fusion("raw", (1.0, 0.00002))),
        ("raw:1,0.1234567891", Fusion("raw", (1.0, 0.1234567891))),
    ],
)
def test_specs_go_both_ways(spec, fusion):
    assert Fusion.parse(spec) == fusion
    assert str(fusion) == spec
    assert Fusion.parse("rrf: 1, 1") == Fusion()


def test_a_question_whose_bm25_scores_lie_far_apart_follows_them():
    fusion = Fusion.parse("std:1,0.6")
    dense = [Hit(0, "a", 0.52), Hit(1, "b", 0.50), Hit(2, "c", 0.48)]
    sure, unsure = [Hit(1, "b", 9.0), Hit(0, "a", 2.0)], [Hit(1, "b", 2.4), Hit(0, "a", 2.0)]
    orders = [
        [hit.passage_id for hit in fusion.fuse([[dense], [bm25]], 3)[0]] for bm25 in (sure, unsure)
    ]
    assert orders == [["b", "a", "c"], ["a", "b", "c"]]


@pytest.mark.parametrize(
    "spec", ["", "borda:1,1", "minmax", "minmax:", "minmax5:1,1", "raw:1,-1", "raw:1;1"]
)
def test_what_is_no_spec_is_refused_with_examples(spec):
    with pytest.raises(ConfigError, match=r"minmax:0\.7,0\.3"):
        Fusion.parse(spec)
