"""Conditions of filters, applied to values without an index."""

from collections.abc import Sequence

import pyarrow as pa

from rag.core.types import Value
from rag.data.filters import Condition
from rag.data.metadata import number_of, text_of


def compared(condition: Condition, values: Sequence[Value]) -> list[bool]:
    """Whether each value meets the condition."""
    texts = pa.array([text_of(value) for value in values], pa.string())
    numbers = pa.array([number_of(value) for value in values], pa.float64())
    matches: list[bool] = condition.matches(texts, numbers).to_pylist()
    return matches
