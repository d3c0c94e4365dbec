"""Conditions of filters, applied to values without an index."""

from collections.abc import Sequence

import pyarrow as pa

from rag.core.types import Value
from rag.data.filters import Condition
from rag.data.metadata import columns_of


def compared(condition: Condition, values: Sequence[Value]) -> list[bool]:
    """Whether each value meets the condition."""
    columns = {"text": pa.string(), "number": pa.float64(), "digits": pa.string()}
    table = pa.Table.from_pylist([columns_of(value) for value in values], pa.schema(columns))
    matches: list[bool] = condition.matches(table).to_pylist()
    return matches
