"""Passages on disk: a memory-mapped Arrow file with one row per passage, and a lookup from id to row.

Files in the directory: `passages.arrow` (Arrow IPC, uncompressed, record batches of `BATCH_ROWS` rows with
the columns id, title, text), `id_hashes.npy` (sorted 64-bit hashes of the ids), `id_rows.npy` (their rows);
and where a passage has such, in the same batches, `locations.arrow` (the columns path, page, headings) and
`metadata.arrow` (the column metadata, a JSON object).
"""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from rag.core.errors import ArtifactError, DataError, RetrievalError
from rag.core.files import atomic_path, clean_directory, disk_errors, hash64
from rag.core.npy import load_npy, save_npy
from rag.core.types import Location, Metadata, Passage

BATCH_ROWS = 1024
_MAPPED_ROWS = 1 << 16  # that a pass reads before it maps the files anew: some 50 MB
ARROW_NAME, HASHES_NAME, ROWS_NAME = "passages.arrow", "id_hashes.npy", "id_rows.npy"
LOCATIONS_NAME, METADATA_NAME = "locations.arrow", "metadata.arrow"
# 64-bit offsets: a batch of very long documents may exceed 2 GiB.
_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "title", "text")])
_LOCATION_SCHEMA = pa.schema(
    [("path", pa.string()), ("page", pa.string()), ("headings", pa.list_(pa.string()))]
)
_METADATA_SCHEMA = pa.schema([("metadata", pa.string())])
_OPTIONAL = {LOCATIONS_NAME: _LOCATION_SCHEMA, METADATA_NAME: _METADATA_SCHEMA}


def _digest_update(digest: hashlib._Hash, passage: Passage) -> None:
    place = passage.location  # without locations the digest is that of versions that had none
    located = (place.path, place.page, *place.headings) if place else ()
    described = (_metadata_json(passage),) if passage.metadata else ()
    for part in (passage.id, passage.title, passage.text, *located, *described):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)


def passages_digest(passages: Iterable[Passage]) -> tuple[int, str]:
    """Count and hex sha256 of passages, as `PassageStoreWriter` computes them while it writes."""
    digest, count = hashlib.sha256(), 0
    for passage in passages:
        _digest_update(digest, passage)
        count += 1
    return count, digest.hexdigest()


class PassageStoreWriter:
    """Writes a store passage by passage; the directory gets its files only on a clean exit.

    Memory grows by 8 bytes per passage. The `with` block ends by sorting the id hashes.

    Raises:
        DataError: on exit, if two passages have the same id; at `add`, for an empty id or invalid Unicode.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.digest = ""
        self._hashes = array("Q")
        self._columns: tuple[list[str], list[str], list[str]] = ([], [], [])
        self._beside: list[Passage] = []  # those of the batch, for the optional files
        self._optional: dict[str, Any] = {}  # writers of these
        self._sha = hashlib.sha256()

    def __enter__(self) -> PassageStoreWriter:
        clean_directory(self.directory)
        self._files = ExitStack()
        self._temporary = self._files.enter_context(atomic_path(self.directory / ARROW_NAME))
        self._writer = pa.ipc.new_file(str(self._temporary), _SCHEMA)
        return self

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, passage: Passage) -> None:
        """Append one passage; its row is the number of passages before it."""
        if not passage.id:
            raise DataError(f"passage {len(self)} has an empty id", hint="give each one of its own")
        try:
            _digest_update(self._sha, passage)
        except UnicodeEncodeError as error:
            raise DataError(f"passage {passage.id!r} holds invalid Unicode ({error})") from error
        self._hashes.append(hash64(passage.id.encode()))
        ids, titles, texts = self._columns
        ids.append(passage.id)
        titles.append(passage.title)
        texts.append(passage.text)
        self._beside.append(passage)
        if len(ids) == BATCH_ROWS:
            self._flush()

    def add_many(self, passages: Iterable[Passage]) -> None:
        """Append passages in order."""
        for passage in passages:
            self.add(passage)

    def _flush(self) -> None:
        arrays = [pa.array(column, pa.large_string()) for column in self._columns]
        with disk_errors(self.directory):
            self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
            self._write_optional(LOCATIONS_NAME, [_location_row(one.location) for one in self._beside])
            self._write_optional(METADATA_NAME, [_metadata_row(one) for one in self._beside])
        for column in (*self._columns, self._beside):
            column.clear()

    def _write_optional(self, name: str, rows: list[dict[str, Any] | None]) -> None:
        """Write the rows of one batch; the file begins with the first passage that has something in it."""
        schema = _OPTIONAL[name]
        if name not in self._optional and any(rows):
            path = self._files.enter_context(atomic_path(self.directory / name))
            self._optional[name] = pa.ipc.new_file(str(path), schema)
            for _ in range((len(self) - 1) // BATCH_ROWS):
                self._optional[name].write_batch(_batch([None] * BATCH_ROWS, schema))
        if name in self._optional:
            self._optional[name].write_batch(_batch(rows, schema))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._files:  # renames the Arrow file into place, or removes it after an error
            if error is not None:
                raise error
            if self._columns[0]:
                self._flush()
            self._writer.close()
            for name in _OPTIONAL:
                if name in self._optional:
                    self._optional[name].close()
                else:  # of a store that was here before
                    (self.directory / name).unlink(missing_ok=True)
            self._write_lookup()
            self.digest = self._sha.hexdigest()

    def _write_lookup(self) -> None:
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable").astype(np.int64)
        ordered = hashes[order]
        self._refuse_duplicates(ordered, order)
        save_npy(self.directory / HASHES_NAME, ordered)
        save_npy(self.directory / ROWS_NAME, order)

    def _refuse_duplicates(self, ordered: np.ndarray, order: np.ndarray) -> None:
        equal = np.flatnonzero(ordered[1:] == ordered[:-1])
        if not len(equal):
            return
        with pa.memory_map(str(self._temporary)) as source:
            reader = pa.ipc.open_file(source)
            repeated = []
            for position in equal:
                first, second = (int(row) for row in order[position : position + 2])
                ids = [
                    reader.get_batch(row // BATCH_ROWS).column(0)[row % BATCH_ROWS].as_py()
                    for row in (first, second)
                ]
                if ids[0] == ids[1]:
                    repeated.append(f"{ids[0]!r} (passages {first} and {second})")
        if repeated:
            raise DataError(
                f"{len(repeated)} passage ids occur more than once: {', '.join(repeated[:3])}",
                hint="make the ids unique",
            )


class PassageStore:
    """Reads a memory-mapped store; pages are read from disk when used. Safe to use from several threads.

    Example:
        >>> import tempfile
        >>> with PassageStoreWriter(tempfile.mkdtemp()) as writer:
        ...     writer.add_many(Passage(f"p{n}", "", f"text {n}") for n in range(3000))
        >>> store = PassageStore.open(writer.directory)
        >>> len(store), store.row_of("p2999"), store[2999].text
        (3000, 2999, 'text 2999')
    """

    def __init__(
        self,
        directory: Path,
        reader: pa.RecordBatchFileReader,
        rows: int,
        optional: Mapping[str, pa.RecordBatchFileReader] | None = None,
        mapped: Sequence[pa.MemoryMappedFile] = (),
    ) -> None:
        self.directory, self._mapped = directory, mapped
        self._reader, self._rows, self._optional = reader, rows, dict(optional or {})
        self._batches: dict[int, dict[str, pa.Array]] = {}
        self._lock = threading.Lock()
        self._hashes = load_npy(directory / HASHES_NAME, dtype=np.uint64, shape=(rows,))
        self._id_rows = load_npy(directory / ROWS_NAME, dtype=np.int64, shape=(rows,))

    @classmethod
    def open(cls, directory: str | Path) -> PassageStore:
        """Map the files of a store.

        Raises:
            ArtifactError: a file is missing, truncated or in another format; the message names it.
        """
        place = Path(directory)
        path = place / ARROW_NAME
        mapped: list[pa.MemoryMappedFile] = []

        def opened(path: Path) -> pa.RecordBatchFileReader:
            mapped.append(pa.memory_map(str(path)))
            return pa.ipc.open_file(mapped[-1])

        try:
            reader = opened(path)
            if not reader.schema.equals(_SCHEMA):
                raise ArtifactError(f"{path} has columns {reader.schema.names}, expected id, title, text")
            last = reader.num_record_batches - 1
            rows = last * BATCH_ROWS + reader.get_batch(last).num_rows if last >= 0 else 0
            if last > 0 and reader.get_batch(0).num_rows != BATCH_ROWS:
                raise ArtifactError(
                    f"{path} does not have batches of {BATCH_ROWS} rows: another program wrote it"
                )
            optional = {}
            for name, schema in _OPTIONAL.items():
                if (path := place / name).exists():
                    optional[name] = opened(path)
                    if optional[name].schema != schema or optional[name].num_record_batches != last + 1:
                        raise ArtifactError(f"{path} does not belong to {ARROW_NAME}: rebuild the index")
        except FileNotFoundError as error:
            raise ArtifactError(f"{path} is missing", hint="restore it or rebuild the index") from error
        except (pa.ArrowInvalid, OSError) as error:
            hint = "restore it or rebuild the index"
            raise ArtifactError(f"{path} is damaged: {error}", hint=hint) from error
        return cls(place, reader, rows, optional, mapped)

    def __len__(self) -> int:
        return self._rows

    def _columns(self, batch: int) -> dict[str, pa.Array]:
        """Ids, titles, texts, and what stands in the optional files, by name."""
        columns = self._batches.get(batch)
        if columns is None:
            columns = self._batches[batch] = self._read(batch)
        return columns

    def _read(self, batch: int) -> dict[str, pa.Array]:
        readers = (self._reader, *self._optional.values())
        with self._lock:
            batches = [reader.get_batch(batch) for reader in readers]
        return {name: column for one in batches for name, column in zip(one.schema.names, one, strict=True)}

    def column(self, name: str) -> pa.ChunkedArray | None:
        """All values of "id", "title", "text", "path", "page", "headings" or "metadata", mapped from the
        disk; None if no passage has such a value.
        """
        reader = next(
            (it for it in (self._reader, *self._optional.values()) if name in it.schema.names), None
        )
        if reader is None:
            return None
        with self._lock:
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return pa.chunked_array([batch.column(name) for batch in batches], reader.schema.field(name).type)

    def __getitem__(self, row: int) -> Passage:
        """The passage in `row`.

        Raises:
            RetrievalError: there is no such row.
        """
        if not 0 <= row < self._rows:
            raise RetrievalError(f"there is no row {row} in a store of {self._rows} passages")
        within = row % BATCH_ROWS
        columns = self._columns(row // BATCH_ROWS)
        return _passage(**{name: column[within].as_py() for name, column in columns.items()})

    def get_many(self, rows: Sequence[int] | np.ndarray) -> list[Passage]:
        """The passages in `rows`, in that order."""
        return [self[int(row)] for row in rows]

    def ids(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """The ids of `rows`, without touching titles and texts."""
        self._check(rows)
        return [self._columns(int(row) // BATCH_ROWS)["id"][int(row) % BATCH_ROWS].as_py() for row in rows]

    def _check(self, rows: Sequence[int] | np.ndarray) -> None:
        if len(rows) and (min(rows) < 0 or max(rows) >= self._rows):
            raise RetrievalError(
                f"rows {min(rows)}…{max(rows)} are outside of a store of {self._rows} passages"
            )

    def row_of(self, passage_id: str) -> int | None:
        """The row of a passage; None if no passage has this id."""
        try:
            wanted = np.uint64(hash64(passage_id.encode()))
        except UnicodeEncodeError:
            return None
        position = int(np.searchsorted(self._hashes, wanted))
        while position < self._rows and self._hashes[position] == wanted:
            row = int(self._id_rows[position])
            if self.ids([row])[0] == passage_id:
                return row
            position += 1
        return None

    def find(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""
        row = self.row_of(passage_id)
        return None if row is None else self[row]

    def __contains__(self, passage_id: object) -> bool:
        return isinstance(passage_id, str) and self.row_of(passage_id) is not None

    def __iter__(self) -> Iterator[Passage]:
        for batch in self.batches(BATCH_ROWS):
            yield from batch

    def batches(self, size: int, *, start: int = 0, stop: int | None = None) -> Iterator[list[Passage]]:
        """Lists of at most `size` passages of rows start … stop - 1, in row order.

        The files are mapped anew every so often, so that a pass over a corpus does not fill the memory.
        """
        end = self._rows if stop is None else min(stop, self._rows)
        step = max(size, _MAPPED_ROWS // size * size)
        for begin in range(start, end, step):
            with closing(self._mapped_anew()) as store:
                for first in range(begin, min(begin + step, end), size):
                    yield list(store._slice(first, min(first + size, end)))

    def _mapped_anew(self) -> PassageStore:
        return PassageStore.open(self.directory)

    def close(self) -> None:
        """Unmap the files; passages that were read stay."""
        for file in self._mapped:
            file.close()

    def _slice(self, start: int, stop: int) -> Iterator[Passage]:
        while start < stop:
            batch, within = divmod(start, BATCH_ROWS)
            count = min(BATCH_ROWS - within, stop - start)
            # Not cached: a pass over the corpus should leave nothing behind.
            columns = self._read(batch)
            values = (column.slice(within, count).to_pylist() for column in columns.values())
            for row in zip(*values, strict=True):
                yield _passage(**dict(zip(columns, row, strict=True)))
            start += count


def _passage(
    id: str, title: str, text: str, path: str | None = None, page: str = "", headings: Sequence[str] = (),
    metadata: str | None = None,
) -> Passage:  # fmt: skip
    place = None if path is None else Location(path, page, tuple(headings))
    return Passage(id, title, text, place, () if metadata is None else metadata_of(metadata))


def _location_row(place: Location | None) -> dict[str, Any] | None:
    return None if place is None else asdict(place)


def _metadata_json(passage: Passage) -> str:
    return json.dumps(dict(passage.metadata), ensure_ascii=False)


def _metadata_row(passage: Passage) -> dict[str, Any] | None:
    return {"metadata": _metadata_json(passage)} if passage.metadata else None


def metadata_of(text: str) -> Metadata:
    """The metadata of a passage from the JSON object that is stored.

    Example:
        >>> metadata_of('{"year": 2020, "tags": ["a", "b"]}')
        (('year', 2020), ('tags', ('a', 'b')))
    """
    found = json.loads(text).items()
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in found)


def _batch(rows: Sequence[dict[str, Any] | None], schema: pa.Schema) -> pa.RecordBatch:
    columns = ([None if row is None else row[field.name] for row in rows] for field in schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)
