"""The values of metadata as filters compare them: typed columns of an Arrow file.

`values.arrow` has a row for each value that a run of passages shares: `start` and `stop` (the rows
of these passages, whose metadata is equal), `field`, and what the value is compared as, `text`,
`number` or `digits` (see `rag.data.metadata.columns_of`). Without metadata there is no such file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexers.id_table import open_arrow, read_batches
from indexers.passages import PassageStore, metadata_of
from indexers.protocols import Selection
from rag.core.arrays import Bool
from rag.core.files import atomic_path
from rag.data.filters import Condition
from rag.data.metadata import columns_of

_VALUES_NAME = "values.arrow"
_SCHEMA = pa.schema(
    {
        "start": pa.int64(),
        "stop": pa.int64(),
        "field": pa.string(),
        "text": pa.string(),
        "number": pa.float64(),
        "digits": pa.string(),
    }
)


def write_values(directory: Path) -> None:
    """Write the file for the passages of a store, in place of that of an earlier store."""
    path = directory / _VALUES_NAME
    stored = PassageStore(directory).column("metadata")
    if stored is None:
        path.unlink(missing_ok=True)
        return
    with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), _SCHEMA) as writer:
        for part in _parts(stored):
            writer.write_batch(pa.RecordBatch.from_pylist(part, _SCHEMA))


def _parts(stored: pa.ChunkedArray) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    start = 0
    texts = chain.from_iterable(chunk.to_pylist() for chunk in stored.iterchunks())
    for text, run in groupby(texts):
        stop = start + len(list(run))
        run_rows = {"start": start, "stop": stop}
        for name, value in metadata_of(text or "{}"):
            for item in value if isinstance(value, tuple) else (value,):
                rows.append(run_rows | {"field": name} | columns_of(item))
        start = stop
        if len(rows) > 1 << 16:
            yield rows
            rows = []
    yield rows


def read_values(directory: Path) -> pa.Table:
    """The values of a store's metadata; a table without rows if it has none."""
    path = directory / _VALUES_NAME
    if not path.exists():
        return _SCHEMA.empty_table()
    return pa.Table.from_batches(read_batches(open_arrow(path, _SCHEMA), path))


def values_of_rows(values: pa.Table, selected: Selection) -> pa.Table:
    """The values that a selected passage has."""
    counts = np.concatenate([[0], np.cumsum(selected.mask)])
    n_selected = counts[np.asarray(values["stop"])] - counts[np.asarray(values["start"])]
    return values.filter(pa.array(n_selected > 0))


def passages_that_meet(condition: Condition, values: pa.Table, passages: int) -> Bool | None:
    """Which passages have a value that meets a condition; None if none has its field.

    Raises:
        FilterError: a bound cannot be compared with any value.
    """
    values = values.filter(pc.equal(values["field"], condition.field)).combine_chunks()
    if not len(values):
        return None
    matching = values.filter(condition.matches(values))
    # A passage matches if more runs with a match have begun than ended.
    changes = np.zeros(passages + 1, np.int64)
    np.add.at(changes, np.asarray(matching["start"]), 1)
    np.subtract.at(changes, np.asarray(matching["stop"]), 1)
    return changes[:-1].cumsum() > 0
