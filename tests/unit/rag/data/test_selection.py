"""How many questions are held out of sets of any size."""

import pytest

from rag.core.errors import DataError
from rag.data.selection import hold_out
from tests.support.messages import refusal


@pytest.mark.parametrize(
    ("groups", "count", "expected"),
    [
        (300, 400, 60),  # more than there are: a fifth
        (300, 100, 100),
        (60, 0.02, 6),  # a tenth, where two per cent is one question
        (300, 0.02, 20),
        (5000, 0.02, 100),
        (60, 0, 0),
        (12, 0.1, 2),  # one alone could not be compared with another
    ],
)
def test_what_is_held_out_grows_with_the_set(
    caplog: pytest.LogCaptureFixture, groups: int, count: float, expected: int
) -> None:
    train, held_out = hold_out([f"question {number}" for number in range(groups)], count, 13, str)
    assert (len(train), len(held_out)) == (groups - expected, expected)
    assert ("only a fifth is: 60" in caplog.text) is (count == 400)
    with refusal(DataError):
        hold_out(["a"], 1, 13, str)
