"""Passages on disk: a memory-mapped Arrow file with one row per passage, and a lookup from id to
row.

Files in the directory: `passages.arrow` (Arrow IPC, uncompressed, record batches of `BATCH_ROWS`
rows, with the columns id, title, text), `ids.arrow` (the ids once more, close together, so that
those of some hundred hits lie on few pages) with its lookup, see `indexers.id_table`; and where a
passage has such, in batches like those of the passages, `locations.arrow` (the columns path, page,
headings), `pages.arrow` (for passages on several pages, the columns page_starts, page_labels),
`scans.arrow` (for passages of scanned pages, the column ocr) and `metadata.arrow` (the column
metadata, a JSON object). Filters read `indexers.metadata_values`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from indexers.id_table import IdTable, open_arrow, read_batch, read_batches
from rag.core.errors import RetrievalError
from rag.core.types import Location, Metadata, Passage

BATCH_ROWS = 128  # Arrow reads a whole batch for one row: some 90 KB
_CACHED_BATCHES = 8192
_MAPPED_ROWS = 1 << 16  # a pass maps the files again after so many rows: some 50 MB
ARROW_NAME = "passages.arrow"
HASHES_NAME = "id_hashes.npy"
ID_SCHEMA = pa.schema([("id", pa.large_string())])
_TEXTS = pa.list_(pa.string())
# 64-bit offsets: a batch of very long documents may exceed 2 GiB.
SCHEMAS = {
    ARROW_NAME: pa.schema([(name, pa.large_string()) for name in ("id", "title", "text")]),
    "locations.arrow": pa.schema(
        [("path", pa.string()), ("page", pa.string()), ("headings", _TEXTS)]
    ),
    "pages.arrow": pa.schema([("page_starts", pa.list_(pa.int32())), ("page_labels", _TEXTS)]),
    "scans.arrow": pa.schema([("ocr", pa.bool_())]),
    "metadata.arrow": pa.schema([("metadata", pa.string())]),
}


class PassageStore:
    """Reads a memory-mapped store; pages are read from disk when used. Safe to use from several
    threads.

    Raises:
        ArtifactError: a file is missing, truncated or in another format; the message names it.

    Example:
        >>> import tempfile
        >>> from indexers.passage_writer import writing_passages
        >>> with writing_passages(tempfile.mkdtemp()) as writer:
        ...     writer.add_many(Passage(f"p{n}", "", f"text {n}") for n in range(3000))
        >>> store = PassageStore(writer.directory)
        >>> len(store), store.row_of("p2999"), store[2999].text
        (3000, 2999, 'text 2999')
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._ids = IdTable(self.directory, "id", ID_SCHEMA)
        batches = -(-len(self._ids) // BATCH_ROWS)
        self._readers = []
        for name, schema in SCHEMAS.items():
            path = self.directory / name
            if name == ARROW_NAME or path.exists():
                self._readers.append(open_arrow(path, schema, batches))
        self._batches: dict[int, dict[str, pa.Array]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def is_same(self, other: PassageStore) -> bool:
        """Whether both are the same store, perhaps under hard links."""
        return (self.directory / ARROW_NAME).samefile(other.directory / ARROW_NAME)

    def _columns(self, batch: int) -> dict[str, pa.Array]:
        """Ids, titles, texts, and what stands in the optional files, by name; cached."""
        columns = self._batches.get(batch)
        if columns is None:
            if len(self._batches) >= _CACHED_BATCHES:
                self._batches = {}
            columns = self._batches[batch] = self._read(batch)
        return columns

    def _read(self, batch: int) -> dict[str, pa.Array]:
        columns: dict[str, pa.Array] = {}
        with self._lock:
            for reader in self._readers:
                part = read_batch(reader, batch, self.directory)
                columns |= zip(part.schema.names, part, strict=True)
        return columns

    def column(self, name: str) -> pa.ChunkedArray | None:
        """All values of a column of the files ("id", "path", "metadata", …), mapped from the disk;
        None if no passage has such a value.
        """
        for reader in self._readers:
            if name in reader.schema.names:
                with self._lock:
                    columns = [batch.column(name) for batch in read_batches(reader, self.directory)]
                return pa.chunked_array(columns, reader.schema.field(name).type)
        return None

    def __getitem__(self, row: int) -> Passage:
        """The passage in `row`.

        Raises:
            RetrievalError: there is no such row.
        """
        self._check([row])
        batch, within = divmod(row, BATCH_ROWS)
        columns = self._columns(batch).items()
        return _passage({name: column[within].as_py() for name, column in columns})

    def get_many(self, rows: Sequence[int] | np.ndarray) -> list[Passage]:
        """The passages in `rows`, in that order."""
        self._check(rows)
        # The system begins to read all their batches before the first is waited for.
        for row in rows:
            self._columns(int(row) // BATCH_ROWS)
        return [self[int(row)] for row in rows]

    def ids(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """The ids of `rows`, without touching titles and texts."""
        self._check(rows)
        return [self._ids.values(int(row))[0] for row in rows]

    def _check(self, rows: Sequence[int] | np.ndarray) -> None:
        if len(rows) and (min(rows) < 0 or max(rows) >= len(self)):
            raise RetrievalError(
                f"rows {min(rows)}…{max(rows)} are outside of {len(self)} passages"
            )

    def row_of(self, passage_id: str) -> int | None:
        """The row of a passage; None if no passage has this id."""
        return self._ids.row_of(passage_id)

    def find(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""
        row = self.row_of(passage_id)
        return None if row is None else self[row]

    def __iter__(self) -> Iterator[Passage]:
        for batch in self.batches(1024):
            yield from batch

    def in_order(self) -> Callable[[range], list[Passage]]:
        """A function that reads ranges of rows: in one pass, as long as they follow each other."""
        following = iter(self)
        position = 0

        def read(rows: range) -> list[Passage]:
            nonlocal position
            skipped = rows.start - position
            if skipped < 0:
                return self.get_many(rows)
            position = rows.stop
            return list(islice(following, skipped, skipped + len(rows)))

        return read

    def batches(
        self, size: int, *, start: int = 0, stop: int | None = None
    ) -> Iterator[list[Passage]]:
        """Lists of at most `size` passages of rows start … stop - 1, in row order.

        The files are mapped anew every so often, so that a pass over a corpus does not fill the
        memory.
        """
        end = len(self) if stop is None else min(stop, len(self))
        step = max(size, _MAPPED_ROWS // size * size)
        for begin in range(start, end, step):
            store = PassageStore(self.directory)
            for first in range(begin, min(begin + step, end), size):
                yield list(store._slice(first, min(first + size, end)))

    def _slice(self, start: int, stop: int) -> Iterator[Passage]:
        while start < stop:
            batch, within = divmod(start, BATCH_ROWS)
            count = min(BATCH_ROWS - within, stop - start)
            # Not cached: a pass over the corpus should leave nothing behind.
            columns = self._read(batch)
            values = (column.slice(within, count).to_pylist() for column in columns.values())
            for row in zip(*values, strict=True):
                yield _passage(dict(zip(columns, row, strict=True)))
            start += count


def _passage(row: Mapping[str, Any]) -> Passage:
    """The passage that has these values in the columns of all files."""
    location = None
    path = row.get("path")
    if path is not None:
        pages = zip(row.get("page_starts") or (), row.get("page_labels") or (), strict=True)
        headings = tuple(row["headings"])
        location = Location(path, row["page"], headings, tuple(pages), bool(row.get("ocr")))
    stored = row.get("metadata")
    metadata = () if stored is None else metadata_of(stored)
    return Passage(row["id"], row["title"], row["text"], location, metadata)


def metadata_of(text: str) -> Metadata:
    """The metadata of a passage from the JSON object that is stored.

    Example:
        >>> metadata_of('{"year": 2020, "tags": ["a", "b"]}')
        (('year', 2020), ('tags', ('a', 'b')))
    """
    items = json.loads(text).items()
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value) for name, value in items
    )
