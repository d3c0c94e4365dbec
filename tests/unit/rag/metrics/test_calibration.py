"""Calibration figures against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag.core.errors import DataError
from rag.metrics.calibration import measure_calibration
from tests.support.messages import refusal

PREDICTIONS = st.lists(
    st.tuples(st.sampled_from([i / 20 for i in range(21)]), st.booleans()), min_size=1, max_size=40
)


@given(PREDICTIONS)
def test_ece_equals_a_plain_loop(predictions: list[tuple[float, bool]]) -> None:
    bins = 10
    total = 0.0
    for index in range(bins):
        low = index / bins
        high = (index + 1) / bins
        inside = [
            (c, y)
            for c, y in predictions
            if (low + 1e-12 < c <= high + 1e-12) or (index == 0 and c == 0.0)
        ]
        if inside:
            gap = abs(
                sum(c for c, _ in inside) / len(inside) - sum(y for _, y in inside) / len(inside)
            )
            total += gap * len(inside) / len(predictions)
    result = measure_calibration(
        [c + 0.0 for c, _ in predictions], [y for _, y in predictions], bins=bins
    )
    assert sum(row["n"] for row in result["bins"]) == len(predictions)
    if all(
        abs(c * 10 - round(c * 10)) > 1e-9 for c, _ in predictions
    ):  # edges differ by rounding only
        assert result["ece"] == pytest.approx(total)


def test_nothing_to_measure_and_bad_values() -> None:
    assert measure_calibration([], []) is None
    assert measure_calibration([np.nan], [1.0]) is None
    with refusal(DataError):
        measure_calibration([3.5], [1])
