"""Bootstrap intervals, paired tests and corrections against brute force and scipy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rag.core.errors import DataError
from rag.metrics import significance as sig
from tests.support.messages import refusal


def test_bootstrap_matches_the_normal_interval_on_many_questions() -> None:
    values = np.random.default_rng(1).random(3000)
    for table in (values, np.round(values)):  # distinct values; two values
        figure = sig.bootstrap(table, seed=3)
        half = 1.96 * table.std() / math.sqrt(len(table))
        assert figure.value == pytest.approx(table.mean())
        assert figure.low == pytest.approx(table.mean() - half, abs=half * 0.12)
        assert figure.high == pytest.approx(table.mean() + half, abs=half * 0.12)


def test_bootstrap_is_fixed_by_its_seed_and_ignores_undefined_questions() -> None:
    values = np.array([np.nan, 1.0, np.nan, 0.0] * 30)
    first = sig.bootstrap(values, seed=9)
    assert (first.value, first.n) == (0.5, 60)
    assert sig.bootstrap(values, seed=9) == first != sig.bootstrap(values, seed=10)
    for undefined in ([], np.full(5, np.nan)):
        figure = sig.bootstrap(undefined)
        assert (figure.n, figure.to_json()["value"]) == (0, None)


def test_unanimous_outcomes_keep_an_honest_interval() -> None:
    for values, expected in (
        ([0.0] * 5, stats.binomtest(0, 5)),
        ([1.0] * 7, stats.binomtest(7, 7)),
    ):
        exact = expected.proportion_ci(0.95, "exact")
        figure = sig.bootstrap(values)
        assert (figure.low, figure.high) == pytest.approx((exact.low, exact.high))
    assert sig.bootstrap([-1.0, 1.0, 0.0]).low < 0.0


def test_one_question_gives_no_interval() -> None:
    for value in (0.0, 0.5, 1.0):
        figure = sig.bootstrap([value])
        assert (figure.value, figure.n) == (value, 1)
        assert f"{figure:.1f}" == f"{value} [nan, nan]"
        assert figure.to_json()["low"] is None
    assert math.isnan(sig.compare_paired([0.0], [1.0]).difference.high)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_exact_randomisation_equals_enumeration(differences: list[int]) -> None:
    signs = np.array(list(itertools.product((-1, 1), repeat=len(differences))))
    sums = np.abs(signs @ np.array(differences))
    expected = np.mean(sums >= abs(sum(differences)))
    assert sig.randomisation_test(differences) == pytest.approx(expected)


def test_sampled_randomisation_is_close_to_the_t_test() -> None:
    coarse = np.random.default_rng(2).integers(0, 5, (2, 200)) / 4
    p_value = sig.randomisation_test(coarse[1] - coarse[0])
    assert p_value == pytest.approx(stats.ttest_rel(coarse[0], coarse[1]).pvalue, abs=0.03)


def test_bad_input_is_refused() -> None:
    with refusal(DataError):
        sig.compare_paired([1.0, 0.0], [1.0])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_monotone_and_never_below_the_raw_value(p_values: list[float]) -> None:
    adjusted = sig.holm(p_values)
    assert all(raw <= new <= 1.0 for raw, new in zip(p_values, adjusted, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert all(x[1] <= y[1] or x[0] == y[0] for x, y in itertools.pairwise(pairs))
    if p_values:
        assert min(adjusted) == pytest.approx(min(1.0, min(p_values) * len(p_values)))


_VALUES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


@given(st.lists(st.tuples(_VALUES, _VALUES), min_size=2, max_size=9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_systems_that_are_exchanged_differ_with_the_other_sign(
    pairs: list[tuple[float, float]], is_unanimous: bool
) -> None:
    a, b = np.array(pairs).T
    if is_unanimous:
        a, b = np.zeros(len(pairs)), np.ones(len(pairs))
    result = sig.compare_paired(a, b)
    exchanged = sig.compare_paired(b, a)
    back = exchanged.difference.times(-1)
    ends = (back.value, back.low, back.high)
    difference = result.difference
    assert ends == pytest.approx((difference.value, difference.low, difference.high), abs=1e-12)
    assert (exchanged.lost, exchanged.ties, exchanged.gained) == (
        result.gained,
        result.ties,
        result.lost,
    )
    assert exchanged.p_value == pytest.approx(result.p_value)


def test_a_difference_that_is_one_everywhere_is_as_uncertain_as_its_test_says() -> None:
    for n in range(2, 12):
        result = sig.compare_paired(np.zeros(n), np.ones(n))
        assert (result.difference.low > 0.0) == (result.p_value < 0.05)
        assert result.difference.high == result.difference.value == 1.0


def test_compare_paired_counts_and_names_the_flips() -> None:
    a = [0.0, 1.0, 0.5, np.nan]
    b = [0.5, 1.0, 0.0, 1.0]
    result = sig.compare_paired(a, b)
    assert (result.gained, result.ties, result.lost) == (1, 1, 1)
    assert result.test == "randomisation"
    assert result.p_value == 1.0
    assert result.difference.n == 3
    assert result.difference.value == pytest.approx(0.0)
