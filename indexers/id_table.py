"""Rows of an Arrow file with ids, mapped into memory, and a lookup from id to row.

Files of a table `name`: `{name}s.arrow`, whose first column has the ids, `{name}_hashes.npy`
(64-bit hashes of the ids, sorted) and `{name}_rows.npy` (their rows).
"""

from __future__ import annotations

import mmap
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rag.core.arrays import Int64, load_npy, save_npy
from rag.core.errors import ArtifactError, DataError
from rag.core.files import atomic_path, hash64, unreadable

TABLE_BATCH_ROWS = 1 << 16


class IdTable:
    """Reads a table, which `writing_table` wrote. Safe to use from several threads.

    Args:
        name: beginning of the files' names, such as "document".
        schema: columns of the Arrow file; the first one has the ids.

    Raises:
        ArtifactError: a file is missing, damaged, or belongs to another table.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema) -> None:
        self._path = directory / f"{name}s.arrow"
        self._rows = load_npy(directory / f"{name}_rows.npy", dtype=np.int64)
        shape = self._rows.shape
        self._hashes = load_npy(directory / f"{name}_hashes.npy", dtype=np.uint64, shape=shape)
        self._reader = open_arrow(self._path, schema, -(-len(self) // TABLE_BATCH_ROWS))
        self._batches: dict[int, list[pa.Array]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def columns(self, batch: int) -> list[pa.Array]:
        """The columns of a batch of `TABLE_BATCH_ROWS` rows."""
        if batch not in self._batches:
            with self._lock:
                self._batches[batch] = read_batch(self._reader, batch, self._path).columns
        return self._batches[batch]

    def values(self, row: int) -> list[Any]:
        """The values of a row, in the order of the columns."""
        batch, within = divmod(row, TABLE_BATCH_ROWS)
        return [column[within].as_py() for column in self.columns(batch)]

    def row_of(self, id: str) -> int | None:
        """The row with this id; None if there is none."""
        try:
            key = np.uint64(hash64(id.encode()))
        except (AttributeError, UnicodeEncodeError):  # no text, or no valid text
            return None
        position = int(self._hashes.searchsorted(key))
        while position < len(self) and self._hashes[position] == key:
            row = int(self._rows[position])
            if self.values(row)[0] == id:
                return row
            position += 1
        return None


@contextmanager
def writing_table(directory: Path, name: str, schema: pa.Schema) -> Iterator[Callable[..., None]]:
    """A function that adds a row, given its values; the first one is its id.

    The table is complete when the block ends. Memory grows by 8 bytes per row.

    Raises:
        DataError: at the end, if two rows have the same id.
    """
    hashes = array("Q")
    waiting = list[tuple[Any, ...]]()
    with atomic_path(directory / f"{name}s.arrow") as temporary:
        with pa.ipc.new_file(str(temporary), schema) as writer:

            def write_batch() -> None:
                columns = [list(column) for column in zip(*waiting, strict=True)]
                writer.write_batch(pa.record_batch(columns, schema=schema))
                waiting.clear()

            def add(*values: Any) -> None:
                hashes.append(hash64(values[0].encode()))
                waiting.append(values)
                if len(waiting) == TABLE_BATCH_ROWS:
                    write_batch()

            yield add
            if waiting:
                write_batch()
        unordered = np.frombuffer(hashes, dtype=np.uint64)
        order = np.argsort(unordered, kind="stable").astype(np.int64)
        ordered = unordered[order]
        _refuse_repeated(temporary, ordered, order)
        save_npy(directory / f"{name}_hashes.npy", ordered)
        save_npy(directory / f"{name}_rows.npy", order)


def _refuse_repeated(path: Path, hashes: NDArray[np.uint64], rows: Int64) -> None:
    """Refuse a table in which an id occurs twice; its hashes are sorted."""
    repeated = []
    with pa.memory_map(str(path)) as source:
        ids = pa.ipc.open_file(source).read_all().column(0)
        for position in np.flatnonzero(hashes[1:] == hashes[:-1]):
            first, second = rows[position : position + 2].tolist()
            if ids[first] == ids[second]:
                repeated.append(f"{ids[first].as_py()!r} (rows {first} and {second})")
    if repeated:
        raise DataError(
            f"{len(repeated)} ids occur more than once: {', '.join(repeated[:3])}",
            hint="make the ids unique",
        )


def open_arrow(
    path: Path, schema: pa.Schema, batches: int | None = None
) -> pa.RecordBatchFileReader:
    """A reader of a mapped Arrow file, unmapped when nothing refers to it any more.

    Args:
        batches: number of batches that the file must have; None: any.

    Raises:
        ArtifactError: the file is missing, damaged, or has other columns or batches.
        ResourceError: the system lacks open files or memory.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # The system reads what Arrow asks it for, and nothing around a page.
        mapped.madvise(mmap.MADV_RANDOM)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
    except (ValueError, OSError) as error:  # raised by Arrow, or for an empty file
        raise unreadable(path, error) from error
    if reader.schema != schema or batches not in (None, reader.num_record_batches):
        raise ArtifactError(
            f"{path} does not belong to the passages of this index",
            hint="restore it or rebuild the index",
        )
    return reader


def read_batch(reader: pa.RecordBatchFileReader, number: int, path: Path) -> pa.RecordBatch:
    """A batch whose offsets lie inside of it: reading beyond them would end the process."""
    try:
        batch = reader.get_batch(number)
        batch.validate(full=True)
    except (ValueError, OSError) as error:
        raise unreadable(path, error) from error
    return batch


def read_batches(reader: pa.RecordBatchFileReader, path: Path) -> list[pa.RecordBatch]:
    """All batches, see `read_batch`."""
    return [read_batch(reader, number, path) for number in range(reader.num_record_batches)]
