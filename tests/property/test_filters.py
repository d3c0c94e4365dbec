"""Conditions beside brute force: values are compared as people mean them."""

import operator
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rag.data.filters import Condition, FilterError
from rag.data.metadata import number_of
from tests.support.filters import compared

COMPARISONS = {"gte": operator.ge, "gt": operator.gt, "lte": operator.le, "lt": operator.lt}
whole_numbers = st.sampled_from([0, 7, -3, 2020, 2**53, 2**53 + 1, 10**20]) | st.integers()
spelled = st.sampled_from(["7", "+7", "07", "2e3", ".5", "-0.5"])
texts = st.sampled_from(["", "nan", "inf", "x", "2020-05", "2020-12-01", "7a", "é"])
numbers = whole_numbers | st.floats(-1e25, 1e25)
values = numbers | spelled | st.just("9007199254740993") | texts | st.booleans()


def key(value: Any) -> Any:
    """The number that a value is or spells, else the value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if number_of(value) is None or not isinstance(value, str):
        return value
    return int(value) if value.lstrip("+-").isdecimal() else float(value)


def is_within(value: Any, sign: str, bound: Any) -> bool | None:
    for left, right in ((key(value), key(bound)), (value, bound)):
        if isinstance(left, str) == isinstance(right, str):
            return COMPARISONS[sign](left, right)
    return None


@settings(deadline=None)
@given(
    st.lists(values, min_size=1, max_size=8),
    st.lists(values.filter(lambda value: not isinstance(value, bool)), min_size=1),
)
def test_equal_values_are_equal_numbers_or_texts(stored: list[Any], wanted: list[Any]) -> None:
    keys = {key(value) for value in wanted}
    condition = Condition("x", tuple(wanted))
    assert compared(condition, stored) == [key(value) in keys for value in stored]


large = st.sampled_from([2**53 + 2, -(2**53) - 1, "9007199254740993", "9.007199254740993e15"])
comparable = numbers | large | spelled | texts


@settings(deadline=None)
@given(st.lists(comparable, min_size=1, max_size=8), st.sampled_from([*COMPARISONS]), comparable)
@example([2**53], "gte", "")
@example([2**53], "lt", "nan")
@example([2**53, 2**53 + 1, "9007199254740992", "x"], "gte", "9007199254740993")
@example([2**53, 2**53 + 1, "9007199254740992", "x"], "lt", 2**53 + 1)
@example([10**19 - 1, 10**19, float(10**19)], "gt", 10**19 - 1)
def test_bounds_compare_numbers_with_numbers_and_texts_with_texts(
    stored: list[Any], sign: str, bound: Any
) -> None:
    expected = [is_within(value, sign, bound) for value in stored]
    condition = Condition("x", bounds=((sign, bound),))
    try:
        assert compared(condition, stored) == list(map(bool, expected))
    except FilterError:
        assert expected == [None] * len(expected)
    else:
        assert set(expected) != {None}
