"""Thresholds that promise an error rate, against brute force and against the rate itself."""

import math
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.errors import ConfigError, DataError
from rag.metrics.selective import Limits, fit_threshold, measure_trade_offs, needed_sample
from tests.support.messages import refusal

RATES = st.sampled_from([0.05, 0.1, 0.3, 0.5])
ANSWERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), st.booleans()), max_size=150
)


def tail(wrong: int, n: int, rate: float) -> float:
    return sum(comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(wrong + 1))


@settings(deadline=None)
@given(st.integers(0, 8), RATES)
def test_needed_samples_equal_sums_of_the_binomial(wrong: int, rate: float) -> None:
    needed = needed_sample(wrong, rate)
    assert tail(wrong, needed, rate) <= 0.05 < tail(wrong, needed - 1, rate)


@settings(deadline=None)
@given(ANSWERS, RATES, st.floats(0.8, 0.99))
def test_a_fitted_threshold_passes_its_own_test(
    answers: list[tuple[float, bool]], rate: float, confidence: float
) -> None:
    limits = Limits(rate, confidence)
    try:
        promise = fit_threshold([c for c, _ in answers], [w for _, w in answers], limits)
    except DataError:
        return
    is_wrong = [wrong for c, wrong in answers if c >= promise.threshold]
    assert promise.coverage == pytest.approx(len(is_wrong) / len(answers), abs=1e-4)
    assert promise.threshold > 0
    assert tail(sum(is_wrong), len(is_wrong), rate) <= 1 - confidence + 1e-9


@pytest.mark.parametrize("skill", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 2.0])
def test_the_promise_holds_as_often_as_it_says(skill: float, shift: float) -> None:
    """Also where the confidences are too modest or too sure, over 400 draws of 250 questions."""
    limits = Limits(0.2, 0.9)
    draw = np.random.default_rng(7)
    logits = draw.normal(skill, 2.0, (400, 250))
    is_wrong = draw.random(logits.shape) > 1 / (1 + np.exp(-logits))
    confidences = 1 / (1 + np.exp(-logits - shift))
    world = np.sort(draw.normal(skill, 2.0, 200_000))[::-1]
    rates = np.cumsum(1 / (1 + np.exp(world))) / np.arange(1, len(world) + 1)
    n_broken = 0
    n_made = 0
    for confidence, wrong in zip(confidences, is_wrong, strict=True):
        try:
            threshold = fit_threshold(confidence, wrong, limits).threshold
        except DataError:
            continue
        n_made += 1
        least_logit = np.log(threshold / (1 - threshold)) - shift
        n_given = np.searchsorted(-world, -least_logit, side="right")
        n_broken += rates[n_given - 1] > limits.max_error
    # 3 standard deviations of 400 draws above a tenth
    assert n_broken <= 400 * (0.1 + 3 * np.sqrt(0.1 * 0.9 / 400))
    assert n_made >= {0.5: 60, 1.5: 300, 2.5: 390}[skill]


def test_questions_without_an_answer_have_a_limit_of_their_own() -> None:
    confidences = np.linspace(0.99, 0.01, 400)
    has_no_answer = (np.arange(400) % 2 == 1) & (confidences < 0.5)
    one = fit_threshold(confidences, has_no_answer, Limits(0.4))
    assert one.coverage == 1.0
    limits = Limits(0.4, max_false_answers=0.3)
    both = fit_threshold(confidences, has_no_answer, limits, has_no_answer=has_no_answer)
    n_false = int(has_no_answer[confidences >= both.threshold].sum())
    assert tail(n_false, 100, 0.3) <= 0.05 < tail(n_false + 1, 100, 0.3)


SURE = [0.9] * 100


NO_PROMISE = {
    "no answers": ([], [], {}),
    "too few answers": ([0.9] * 28 + [0.0] * 9, [False] * 37, {}),
    "too many errors": (SURE, [True] * 6 + [False] * 94, {}),
    "no unanswerable questions": (SURE, [False] * 100, {"max_false_answers": 0.2}),
    "confidence above 1": ([1.5], [False], {}),
    "confidence that is NaN": ([float("nan")], [False], {}),
}


@pytest.mark.parametrize(("confidences", "is_wrong", "limits"), NO_PROMISE.values(), ids=NO_PROMISE)
def test_what_allows_no_promise_is_refused_with_the_number_needed(
    confidences: list[float], is_wrong: list[bool], limits: dict[str, float]
) -> None:
    with refusal(DataError):
        fit_threshold(confidences, is_wrong, Limits(0.1, **limits))


def test_too_many_false_answers_are_refused() -> None:
    has_no_answer = [True] * 20 + [False] * 80
    limits = Limits(0.5, max_false_answers=0.3)
    with refusal(DataError):
        fit_threshold(SURE, has_no_answer, limits, has_no_answer=has_no_answer)


@pytest.mark.parametrize("name", ["max_error", "confidence", "max_false_answers"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 10.0, float("nan")])
def test_shares_lie_between_0_and_1(name: str, value: float) -> None:
    with refusal(ConfigError, name):
        Limits(**{"max_error": 0.1, name: value})


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_the_curve_counts_what_each_threshold_gives(
    answers: list[tuple[float, bool, bool]],
) -> None:
    for point in measure_trade_offs(*zip(*answers, strict=True)):
        given_ones = [right for chance, right, _ in answers if chance >= point.threshold]
        refused = [chance < point.threshold for chance, _, is_empty in answers if is_empty]
        assert point.given == pytest.approx(len(given_ones) / len(answers))
        expected = [sum(each) / len(each) if each else math.nan for each in (given_ones, refused)]
        assert [point.right, point.refused] == pytest.approx(expected, nan_ok=True)
