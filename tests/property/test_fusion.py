"""Fusion against formulas written out one passage at a time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.errors import ConfigError
from rag.core.types import Hit
from retrievers.hybrid import Fusion
from tests.support.messages import refusal

# Some scores are equal, within a list and beside the score of what it lacks.
SCORES = st.floats(-100, 100, width=32) | st.sampled_from([0.0, 1.0, 3.0])


@st.composite
def ranked(draw):
    rows = draw(st.lists(st.integers(0, 14), unique=True, max_size=10))
    scores = sorted(draw(st.lists(SCORES, min_size=len(rows), max_size=len(rows))), reverse=True)
    return [Hit(row, f"p{row:02d}", score) for row, score in zip(rows, scores, strict=True)]


LISTS = st.lists(ranked(), min_size=2, max_size=3)
WEIGHTS = st.floats(0, 4)
ABSENT = st.one_of(st.none(), SCORES)
METHODS = st.sampled_from(["rrf", "raw", "minmax", "std", "zscore"])


def floor_of(hits, absent, depth):
    """The score in a list of every passage that the list lacks."""
    least = min(hit.score for hit in hits)
    is_known = absent is not None and len(hits) < depth
    return min(absent, least) if is_known else least


def value(fusion, number, hits, absent, depth, row):
    """What a list adds to a passage, before its weight."""
    own = next((hit.score for hit in hits if hit.row == row), None)
    if fusion.method == "rrf":
        better = [hit for hit in hits if own is not None and hit.score > own]
        return 0.0 if own is None else 1 / (fusion.k + len(better) + 1)
    floor = floor_of(hits, absent, depth)
    score = floor if own is None else own
    values = [hit.score for hit in hits]
    if absent is not None:
        values += [floor] * (depth - len(hits))
    low, high = min(values), max(values)
    if fusion.method == "zscore" or (fusion.method == "std" and number == 0):
        deviation = np.std(values) if high > low else 0.0
        standard = (score - np.mean(values)) / deviation if deviation > 0 else 0.0
        return (
            math.copysign(abs(standard) ** 1.5, standard) if fusion.method == "zscore" else standard
        )
    if fusion.method == "minmax":
        return (score - low) / (high - low) if high > low else 1.0
    return score


def brute_force(fusion, lists, absent_scores, depth):
    totals = {}
    for row in {hit.row for hits in lists for hit in hits}:
        total = sum(
            weight * value(fusion, number, hits, absent, depth, row)
            for number, (weight, hits, absent) in enumerate(
                zip(fusion.weights, lists, absent_scores, strict=True)
            )
            if hits
        )
        if fusion.method == "zscore":
            total = math.copysign(abs(total) ** (2 / 3), total)
        totals[f"p{row:02d}"] = total
    return totals


@settings(max_examples=150, deadline=None)
@given(LISTS, st.data(), st.integers(1, 20), st.integers(0, 12), METHODS)
def test_scores_are_those_of_the_formula(lists, data, top_k, depth, method):
    size = len(lists)
    weights = tuple(data.draw(st.lists(WEIGHTS, min_size=size, max_size=size)))
    absent_scores = data.draw(st.lists(ABSENT, min_size=size, max_size=size))
    fusion = Fusion(method, weights)
    of_one_question = [[hits] for hits in lists]
    (fused,) = fusion.fuse(of_one_question, top_k, depth=depth, absent_scores=absent_scores)
    expected = brute_force(fusion, lists, absent_scores, depth)
    assert len(fused) == min(top_k, len(expected))
    assert fused == sorted(fused, key=Hit.sort_key)
    for hit in fused:
        assert hit.score == pytest.approx(expected[hit.passage_id], abs=1e-9)
    if fused:
        kept = {hit.passage_id for hit in fused}
        left_out = [score for name, score in expected.items() if name not in kept]
        assert all(score <= fused[-1].score + 1e-9 for score in left_out)


COARSE = st.integers(-12, 12).map(lambda eighths: eighths / 8)


@st.composite
def coarsely_ranked(draw):
    """A list whose scores are equal or clearly apart, so that no sum hides a difference."""
    scores = draw(st.dictionaries(st.integers(0, 9), COARSE, max_size=8))
    return sorted(
        (Hit(row, f"p{row:02d}", score) for row, score in scores.items()), key=Hit.sort_key
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(coarsely_ranked(), min_size=2, max_size=3), st.data(), st.integers(0, 10), METHODS)
def test_a_passage_that_no_list_prefers_comes_later(lists, data, depth, method):
    size = len(lists)
    absent_scores = data.draw(st.lists(st.one_of(st.none(), COARSE), min_size=size, max_size=size))
    weights = tuple(
        data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=size, max_size=size))
    )
    of_one_question = [[hits] for hits in lists]
    (fused,) = Fusion(method, weights).fuse(
        of_one_question, 100, depth=depth, absent_scores=absent_scores
    )
    rank = {hit.row: number for number, hit in enumerate(fused)}

    def scores_of(row):
        scores = []
        for hits, absent in zip(lists, absent_scores, strict=True):
            # In reciprocal-rank fusion every hit stands above what its list lacks.
            floor = -np.inf
            if hits and method != "rrf":
                floor = floor_of(hits, absent, depth)
            scores.append(next((hit.score for hit in hits if hit.row == row), floor))
        return scores

    for worse in rank:
        for better in rank:
            pairs = list(zip(scores_of(worse), scores_of(better), strict=True))
            if all(low <= high for low, high in pairs) and any(low < high for low, high in pairs):
                assert rank[better] < rank[worse]


def test_questions_stay_apart():
    first, second = [Hit(0, "a", 1.0)], [Hit(1, "b", 1.0)]
    fused = Fusion().fuse([[first, second], [[], second]], 5)
    assert [[hit.passage_id for hit in hits] for hits in fused] == [["a"], ["b"]]
    assert fused[1][0].score == pytest.approx(2 / 61)


@pytest.mark.parametrize(
    ("spec", "fusion"),
    [
        ("minmax:0.7,0.3", Fusion("minmax", (0.7, 0.3))),
        ("std:1,0.6", Fusion("std", (1.0, 0.6))),
        ("zscore:1,0.7", Fusion("zscore", (1.0, 0.7))),
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


@pytest.mark.parametrize(
    "spec", ["", "borda:1,1", "minmax", "minmax:", "minmax5:1,1", "raw:1,-1", "raw:1;1"]
)
def test_what_is_no_spec_is_refused_with_examples(spec):
    with refusal(ConfigError):
        Fusion.parse(spec)
