"""How many questions are held out of sets of any size."""

import logging

import pytest

from rag.core.errors import DataError
from rag.data.selection import hold_out


@pytest.mark.parametrize(
    ("groups", "count", "expected"),
    [
        (300, 400, 60),  # more than there are: a fifth
        (300, 200, 60),
        (300, 100, 100),
        (60, 0.02, 6),  # a tenth, where two per cent is one question
        (300, 0.02, 20),
        (5000, 0.02, 100),
        (60, 0.3, 18),
        (60, 0, 0),
    ],
)
def test_what_is_held_out_grows_with_the_set(groups: int, count: float, expected: int) -> None:
    items = [f"question {number}" for number in range(groups)]
    kept, held_out = hold_out(items, count, 13, str)
    assert (len(kept), len(held_out)) == (groups - expected, expected)


def test_a_smaller_hold_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    hold_out([str(number) for number in range(300)], 400, 13, str)
    assert "400 of 300 questions or articles were to be held out, only a fifth is: 60" in caplog.text
    with pytest.raises(DataError, match="1 of 1"):
        hold_out(["a"], 1, 13, str)
