"""Kendall's tau of made and of people's questions."""

import numpy as np
import pytest

from rag.bench.questions.agreement import main, measure_agreement
from rag.core.errors import ConfigError
from tests.support.messages import refusal


def test_tau_counts_pairs_of_settings_in_the_same_order() -> None:
    draw = np.random.default_rng(1)
    people = np.arange(5.0)[:, None] + draw.normal(0, 0.1, (5, 40))
    made = np.array([0.0, 1.0, 3.0, 2.0, 4.0])[:, None] + draw.normal(0, 0.1, (5, 12))
    tau, halves = measure_agreement(people, made)
    # One of ten pairs is the other way round.
    assert (tau.value, tau.low, tau.high, tau.n) == pytest.approx((0.8, 0.8, 0.8, 12))
    assert halves == pytest.approx(1)
    tau, _ = measure_agreement(people, -made)
    assert tau.value == pytest.approx(-0.8)


def test_questions_that_order_nothing_have_a_wide_interval() -> None:
    draw = np.random.default_rng(2)
    tau, halves = measure_agreement(draw.random((8, 60)), draw.random((8, 60)))
    assert tau.low < 0 < tau.high
    assert abs(halves) < 0.3


def test_lists_of_other_lengths_are_refused() -> None:
    with refusal(ConfigError):
        main(people=[], made=[])
