"""The documents of an index: their ids, digests of their files or records, and the rows of their
passages, in a table that is mapped into memory.

Files beside the passages: `documents.arrow` with its lookup (see `indexers.id_table`), and
`document_starts.npy` (N + 1): the row of each document's first passage.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexers.id_table import TABLE_BATCH_ROWS, IdTable, writing_table
from rag.core.arrays import Bool, load_npy, save_npy
from rag.core.types import Passage

DOCUMENTS_NAME = "documents.arrow"
_STARTS_NAME = "document_starts.npy"
_SCHEMA = pa.schema(
    [("id", pa.large_string()), ("digest", pa.large_string()), ("sent", pa.bool_())]
)


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """A document of an index.

    Attributes:
        digest: hex digest of the file or the record that it was read from; "" if it is not known.
        sent: whether it came over HTTP, not from the corpus.
        rows: rows of its passages.
    """

    id: str
    digest: str
    sent: bool
    rows: range


@dataclass(frozen=True, slots=True)
class Put:
    """A document that is new, or replaces the document with its id; see `DocumentEntry`."""

    id: str
    digest: str
    passages: list[Passage]
    sent: bool = False


class Documents:
    """The table of documents, in the order of the index.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp())
        >>> with writing_documents(place) as add:
        ...     add(Put("a.md", "12ab", [Passage("a-0", "", "x"), Passage("a-1", "", "y")]))
        ...     add(Put("b.md", "34cd", [Passage("b-0", "", "z")]))
        >>> documents = Documents(place)
        >>> documents.rows("a.md"), documents.of_row(2).id
        (range(0, 2), 'b.md')
    """

    def __init__(self, directory: Path) -> None:
        self._table = IdTable(directory, "document", _SCHEMA)
        shape = (len(self) + 1,)
        self._starts = load_npy(directory / _STARTS_NAME, dtype=np.int64, shape=shape)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[DocumentEntry]:
        for first in range(0, len(self), TABLE_BATCH_ROWS):
            columns = self._table.columns(first // TABLE_BATCH_ROWS)
            values = zip(*(column.to_pylist() for column in columns), strict=True)
            starts = self._starts[first : first + TABLE_BATCH_ROWS + 1].tolist()
            rows = itertools.starmap(range, itertools.pairwise(starts))
            for (id, digest, is_sent), rows_of_document in zip(values, rows, strict=True):
                yield DocumentEntry(id, digest, is_sent, rows_of_document)

    def __getitem__(self, number: int) -> DocumentEntry:
        start, stop = self._starts[number : number + 2].tolist()
        id, digest, is_sent = self._table.values(number)
        return DocumentEntry(id, digest, is_sent, range(start, stop))

    @property
    def n_passages(self) -> int:
        """The number of passages of all documents."""
        return int(self._starts[-1])

    def row_of(self, id: str) -> int | None:
        """The number of the document with this id, in the order of the index; None if there is
        none.
        """
        return self._table.row_of(id)

    def mask_of_passages(self, documents: Bool) -> Bool:
        """(N,) bool: the passages of the documents that a mask (M,) chooses."""
        return np.repeat(documents, np.diff(self._starts))

    def find(self, id: str) -> DocumentEntry | None:
        """The document with this id, or None."""
        number = self._table.row_of(id)
        return None if number is None else self[number]

    def rows(self, id: str) -> range:
        """Rows of the passages of a document; empty if there is no such document."""
        found = self.find(id)
        return range(0) if found is None else found.rows

    def of_row(self, row: int) -> DocumentEntry:
        """The document of a passage."""
        return self[int(np.searchsorted(self._starts, row, side="right")) - 1]

    def page(
        self, after: str | None, limit: int, visible: Bool | None = None
    ) -> list[DocumentEntry]:
        """At most `limit` documents that follow the document `after`; from the first if None.

        Args:
            visible: (M,) bool: the documents that there are for whoever asks; None: all.

        Raises:
            KeyError: there is no document `after`.
        """
        start = 0
        if after is not None:
            number = self._table.row_of(after)
            if number is None or (visible is not None and not visible[number]):
                raise KeyError(after)
            start = number + 1
        following: Sequence[int] = range(start, len(self))
        if visible is not None:
            following = (start + np.flatnonzero(visible[start:])).tolist()
        return [self[next_number] for next_number in following[:limit]]


class InOrder:
    """Finds documents without a lookup, as long as they are asked for in the order of the index."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._following = iter(documents)
        self._next = next(self._following, None)

    def find(self, id: str) -> DocumentEntry | None:
        """See `Documents.find`."""
        is_next = self._next is not None and self._next.id == id
        found = self._next if is_next else self._documents.find(id)
        while found and self._next and self._next.rows.start <= found.rows.start:
            self._next = next(self._following, None)
        return found


@contextmanager
def writing_documents(directory: Path) -> Iterator[Callable[[Put], None]]:
    """A function that adds a document to the table, in the order of their passages.

    The table is complete when the block ends. Memory grows by 16 bytes per document.

    Raises:
        DataError: at the end, if two documents have the same id.
    """
    starts = array("q", [0])
    with writing_table(directory, "document", _SCHEMA) as add_row:

        def add(put: Put) -> None:
            add_row(put.id, put.digest, put.sent)
            starts.append(starts[-1] + len(put.passages))

        yield add
    save_npy(directory / _STARTS_NAME, np.frombuffer(starts, dtype=np.int64))
