"""Filters of passages, and the values of metadata that they compare: typed columns of an Arrow file.

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

from indexers.documents import Documents
from indexers.id_table import open_arrow, read_batches
from indexers.passages import PassageStore, metadata_of
from indexers.protocols import Selection
from indexers.rights import Readable
from rag.core.arrays import Bool
from rag.core.files import atomic_path
from rag.data.filters import Condition, Filter, FilterError
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


class PassageFilters:
    """Selects the passages of an index that meet filters."""

    def __init__(self, passages: PassageStore, documents: Documents) -> None:
        self._passages = passages
        self._documents = documents

    def select(self, filter: Filter, readable: Readable | None) -> Selection:
        """The readable rows whose passages meet all conditions; perhaps none."""
        allowed = None if readable is None else readable.rows
        mask = np.ones(len(self._passages), dtype=bool)
        if allowed is not None:
            mask &= allowed.mask
        for condition in filter:
            mask &= self._matches(condition, allowed)
        return Selection(mask)

    def _matches(self, condition: Condition, allowed: Selection | None) -> Bool:
        """Which passages (N,) have a value that meets a condition.

        Raises:
            FilterError: none has its field, or a bound cannot be compared with any value.
        """
        name = condition.field
        if name == "document":
            mask = np.zeros(len(self._passages), dtype=bool)
            for value in condition.values:
                rows = self._documents.rows(str(value))
                mask[rows.start : rows.stop] = True
            return mask
        paths = self._passages.column("path")
        values = _read_values(self._passages.directory)
        # Errors name fields and values: those of other passages are nobody's business.
        if allowed is not None:
            counts = np.concatenate([[0], np.cumsum(allowed.mask)])
            n_allowed = counts[np.asarray(values["stop"])] - counts[np.asarray(values["start"])]
            values = values.filter(pa.array(n_allowed > 0))
            if paths is not None and paths.take(allowed.rows).null_count == len(allowed):
                paths = None
        if name != "path":
            of_field = values.filter(pc.equal(values["field"], name)).combine_chunks()
            if len(of_field):
                matching = of_field.filter(condition.matches(of_field))
                # A passage matches if more runs with a match have begun than ended.
                changes = np.zeros(len(self._passages) + 1, np.int64)
                np.add.at(changes, np.asarray(matching["start"]), 1)
                np.subtract.at(changes, np.asarray(matching["stop"]), 1)
                return changes[:-1].cumsum() > 0
        elif paths is not None:
            matching = condition.match_paths(pc.unique(paths).drop_null().to_pylist())
            return np.asarray(pc.is_in(paths, pa.array(matching, paths.type)))
        fields = ["document"] if paths is None else ["path", "document"]
        fields += pc.unique(values["field"]).to_pylist()
        raise FilterError(
            f"{{filter}} names the field {name!r}, which no passage of this index has "
            f"(fields: {', '.join(fields)})",
            hint=f"where its records have this field, index the corpus again: `rag index … --metadata {name}`",
            arguments=["filter"],
        )


def _read_values(directory: Path) -> pa.Table:
    """The values of a store's metadata; a table without rows if it has none."""
    path = directory / _VALUES_NAME
    if not path.exists():
        return _SCHEMA.empty_table()
    return pa.Table.from_batches(read_batches(open_arrow(path, _SCHEMA), path))
