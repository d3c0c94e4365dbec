"""Calibration and risk-coverage figures against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.errors import DataError
from rag.metrics.calibration import measure_calibration, risk_coverage

PREDICTIONS = st.lists(
    st.tuples(st.sampled_from([i / 20 for i in range(21)]), st.booleans()), min_size=1, max_size=40
)


@given(PREDICTIONS)
def test_ece_equals_a_plain_loop(predictions: list[tuple[float, bool]]) -> None:
    bins = 10
    total = 0.0
    for index in range(bins):
        low, high = index / bins, (index + 1) / bins
        inside = [
            (c, y) for c, y in predictions if (low + 1e-12 < c <= high + 1e-12) or (index == 0 and c == 0.0)
        ]
        if inside:
            gap = abs(sum(c for c, _ in inside) / len(inside) - sum(y for _, y in inside) / len(inside))
            total += gap * len(inside) / len(predictions)
    result = measure_calibration([c + 0.0 for c, _ in predictions], [y for _, y in predictions], bins=bins)
    assert result is not None
    assert sum(row.n for row in result.bins) == len(predictions)
    if all(abs(c * 10 - round(c * 10)) > 1e-9 for c, _ in predictions):  # edges differ by rounding only
        assert result.ece == pytest.approx(total)
    assert result.mce >= result.ece - 1e-12


def test_perfect_and_inverted_confidence() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random(20_000)
    correct = (rng.random(20_000) < confidence).astype(float)
    good, bad = measure_calibration(confidence, correct), measure_calibration(1 - confidence, correct)
    assert good is not None
    assert bad is not None
    assert good.ece < 0.02 < 0.3 < bad.ece


@given(PREDICTIONS)
@settings(max_examples=60)
def test_area_does_not_depend_on_order_and_lies_above_the_oracle(
    predictions: list[tuple[float, bool]],
) -> None:
    first = risk_coverage([c for c, _ in predictions], [y for _, y in predictions])
    second = risk_coverage([c for c, _ in predictions[::-1]], [y for _, y in predictions[::-1]])
    assert first is not None
    assert second is not None
    assert first.aurc == pytest.approx(second.aurc)
    assert first.aurc >= first.oracle_aurc - 1e-12
    assert first.coverage[-1] == pytest.approx(1.0)
    assert first.risk[-1] == pytest.approx(1 - sum(y for _, y in predictions) / len(predictions))


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage([0.9, 0.7, 0.7, 0.1], [1, 1, 0, 0])
    assert curve is not None
    assert curve.coverage == (0.25, 0.75, 1.0)
    assert curve.risk == pytest.approx((0.0, 1 / 3, 0.5))
    assert curve.aurc == pytest.approx((0 + 0.5 / 2 + 1 / 3 + 2 / 4) / 4)


def test_nothing_to_measure_and_bad_values() -> None:
    assert measure_calibration([], []) is None
    assert risk_coverage([np.nan], [1.0]) is None
    with pytest.raises(DataError, match="between 0 and 1"):
        measure_calibration([3.5], [1])
    with pytest.raises(DataError, match="one confidence per prediction"):
        risk_coverage([0.5, 0.5], [1])
