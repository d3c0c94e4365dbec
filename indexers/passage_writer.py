"""Write passages to disk, in the files that `indexers.passages` reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from indexers.id_table import writing_table
from indexers.metadata_values import write_values
from indexers.passages import ARROW_NAME, BATCH_ROWS, ID_SCHEMA, SCHEMAS
from rag.core.errors import DataError
from rag.core.files import atomic_path, clean_directory, disk_errors
from rag.core.types import Passage


def _digest_update(digest: hashlib._Hash, passage: Passage) -> None:
    parts = [passage.id, passage.title, passage.text]
    location = passage.location
    if location is not None:
        parts += [location.path, location.page, *location.headings]
        parts += [f"{start} {label}" for start, label in location.pages]
        if location.ocr:
            parts.append("ocr")
    if passage.metadata:
        parts.append(_metadata_json(passage))
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)


def passages_digest(passages: Iterable[Passage]) -> tuple[int, str]:
    """Count and hex sha256 of passages, as `PassageWriter` computes them while it writes."""
    digest = hashlib.sha256()
    count = 0
    for passage in passages:
        _digest_update(digest, passage)
        count += 1
    return count, digest.hexdigest()


@contextmanager
def writing_passages(directory: str | Path) -> Iterator[PassageWriter]:
    """A writer of a store; the directory gets its files only when the block ends without an error.

    Memory grows by 8 bytes per passage. The block ends by sorting the id hashes.

    Raises:
        DataError: at the end, if two passages have the same id; before, for an empty id or invalid
            Unicode.
    """
    folder = Path(directory)
    clean_directory(folder)
    # Files are renamed into place, or removed after an error; an id that occurs twice is found
    # first.
    with ExitStack() as files, writing_table(folder, "id", ID_SCHEMA) as add_id:
        writer = PassageWriter(folder, files, add_id)
        yield writer
        writer.finish()
    write_values(folder)


class PassageWriter:
    """Adds passages to a store, see `writing_passages`."""

    def __init__(self, directory: Path, files: ExitStack, add_id: Callable[..., None]) -> None:
        self.directory = directory
        self._files = files
        self._add_id = add_id
        self._count = 0
        self._batch: list[Passage] = []
        self._sha = hashlib.sha256()
        self._writers: dict[str, Any] = {}
        self._begin(ARROW_NAME)

    def __len__(self) -> int:
        return self._count

    @property
    def digest(self) -> str:
        """Hex sha256 of the passages, see `passages_digest`."""
        return self._sha.hexdigest()

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

    def finish(self) -> None:
        """Write what is left, and remove what an earlier store left."""
        if self._batch:
            self._flush()
        for name in SCHEMAS:
            if name in self._writers:
                self._writers[name].close()
            else:
                (self.directory / name).unlink(missing_ok=True)

    def _begin(self, name: str) -> None:
        path = self._files.enter_context(atomic_path(self.directory / name))
        self._writers[name] = pa.ipc.new_file(str(path), SCHEMAS[name])

    def _flush(self) -> None:
        with disk_errors(self.directory):
            rows = list(map(_row, self._batch))
            for name, schema in SCHEMAS.items():
                # A file begins with the first passage that has something in it.
                if name not in self._writers and any(schema.names[0] in row for row in rows):
                    self._begin(name)
                    for _ in range((len(self) - 1) // BATCH_ROWS):
                        self._write(name, [{}] * BATCH_ROWS)
                if name in self._writers:
                    self._write(name, rows)
            for passage in self._batch:
                self._add_id(passage.id)
            self._batch.clear()

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._writers[name].write_batch(pa.RecordBatch.from_pylist(rows, SCHEMAS[name]))


def _row(passage: Passage) -> dict[str, Any]:
    """What a passage has for the columns of all files, by their names."""
    row: dict[str, Any] = {"id": passage.id, "title": passage.title, "text": passage.text}
    location = passage.location
    if location is not None:
        row |= {"path": location.path, "page": location.page, "headings": location.headings}
        if location.pages:
            row["page_starts"], row["page_labels"] = zip(*location.pages, strict=True)
        if location.ocr:
            row["ocr"] = True
    if passage.metadata:
        row["metadata"] = _metadata_json(passage)
    return row


def _metadata_json(passage: Passage) -> str:
    return json.dumps(dict(passage.metadata), ensure_ascii=False)
