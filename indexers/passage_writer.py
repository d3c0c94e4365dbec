"""Write passages to disk, in the files that `indexers.passages` reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from indexers.id_table import writing_table
from indexers.metadata_values import write_values
from indexers.passages import (
    ARROW_NAME,
    BATCH_ROWS,
    ID_SCHEMA,
    OPTIONAL_SCHEMAS,
    PASSAGE_SCHEMA,
)
from rag.core.errors import DataError
from rag.core.files import atomic_path, clean_directory, disk_errors
from rag.core.types import Passage


def _digest_update(digest: hashlib._Hash, passage: Passage) -> None:
    place = passage.location
    located = (place.path, place.page, *place.headings) if place else ()
    pages = (f"{start} {label}" for start, label in place.pages) if place else ()
    recognised = ("ocr",) if place and place.ocr else ()
    described = (_metadata_json(passage),) if passage.metadata else ()
    for part in (
        passage.id,
        passage.title,
        passage.text,
        *located,
        *pages,
        *recognised,
        *described,
    ):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)


def passages_digest(passages: Iterable[Passage]) -> tuple[int, str]:
    """Count and hex sha256 of passages, as `PassageStoreWriter` computes them while it writes."""
    digest = hashlib.sha256()
    count = 0
    for passage in passages:
        _digest_update(digest, passage)
        count += 1
    return count, digest.hexdigest()


class PassageStoreWriter:
    """Writes a store passage by passage; the directory gets its files only on a clean exit.

    Memory grows by 8 bytes per passage. The `with` block ends by sorting the id hashes.

    Raises:
        DataError: on exit, if two passages have the same id; before, for an empty id or invalid
            Unicode.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.digest = ""
        self._count = 0
        self._batch: list[Passage] = []
        self._optional: dict[str, Any] = {}  # writers of the optional files
        self._sha = hashlib.sha256()

    def __enter__(self) -> PassageStoreWriter:
        clean_directory(self.directory)
        self._files = ExitStack()
        self._table = ExitStack()
        temporary = self._files.enter_context(atomic_path(self.directory / ARROW_NAME))
        self._writer = pa.ipc.new_file(str(temporary), PASSAGE_SCHEMA)
        self._add_id = self._table.enter_context(writing_table(self.directory, "id", ID_SCHEMA))
        return self

    def __len__(self) -> int:
        return self._count

    def add_many(self, passages: Iterable[Passage]) -> None:
        """Append passages in order; the row of each is the number of passages before it."""
        for passage in passages:
            if not passage.id:
                raise DataError(
                    f"passage {len(self)} has an empty id", hint="give each one of its own"
                )
            try:
                _digest_update(self._sha, passage)
            except UnicodeEncodeError as error:
                raise DataError(
                    f"passage {passage.id!r} holds invalid Unicode ({error})"
                ) from error
            self._count += 1
            self._batch.append(passage)
            if len(self._batch) == BATCH_ROWS:
                self._flush()

    def _flush(self) -> None:
        with disk_errors(self.directory):
            rows = list(map(_row, self._batch))
            self._writer.write_batch(_record_batch(rows, PASSAGE_SCHEMA))
            for name in OPTIONAL_SCHEMAS:
                self._write_optional(name, rows)
            for passage in self._batch:
                self._add_id(passage.id)
            self._batch.clear()

    def _write_optional(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write the rows of one batch; the file begins with the first passage that has something in
        it.
        """
        schema = OPTIONAL_SCHEMAS[name]
        if name not in self._optional and any(schema.names[0] in row for row in rows):
            path = self._files.enter_context(atomic_path(self.directory / name))
            self._optional[name] = pa.ipc.new_file(str(path), schema)
            for _ in range((len(self) - 1) // BATCH_ROWS):
                self._optional[name].write_batch(_record_batch([{}] * BATCH_ROWS, schema))
        if name in self._optional:
            self._optional[name].write_batch(_record_batch(rows, schema))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Renames the files into place, or removes them after an error; an id that occurs twice is
        # found first.
        with self._files, self._table:
            if error is not None:
                raise error
            if self._batch:
                self._flush()
            self._writer.close()
            for name in OPTIONAL_SCHEMAS:
                if name in self._optional:
                    self._optional[name].close()
                else:  # may be left from an earlier store
                    (self.directory / name).unlink(missing_ok=True)
            self.digest = self._sha.hexdigest()
        write_values(self.directory)


def _row(passage: Passage) -> dict[str, Any]:
    """What a passage has for the columns of all files, by their names."""
    row: dict[str, Any] = {"id": passage.id, "title": passage.title, "text": passage.text}
    place = passage.location
    if place is not None:
        row |= {"path": place.path, "page": place.page, "headings": place.headings}
        if place.pages:
            row["page_starts"], row["page_labels"] = zip(*place.pages, strict=True)
        if place.ocr:
            row["ocr"] = True
    if passage.metadata:
        row["metadata"] = _metadata_json(passage)
    return row


def _metadata_json(passage: Passage) -> str:
    return json.dumps(dict(passage.metadata), ensure_ascii=False)


def _record_batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = ([row.get(field.name) for row in rows] for field in schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)
