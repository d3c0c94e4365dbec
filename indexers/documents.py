"""The documents of an index: their ids, digests of their files or records, the rows of their passages.

The table is stored beside the passages, so that an update reads only the documents that changed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rag.core.arrays import Int64
from rag.core.errors import ArtifactError
from rag.core.files import atomic_path
from rag.core.ragged import ranges
from rag.core.types import Passage
from rag.data.records import Document

DOCUMENTS_NAME = "documents.arrow"
_BATCH_ROWS = 65_536
_SCHEMA = pa.schema(
    [
        ("id", pa.large_string()),
        ("digest", pa.string()),
        ("passages", pa.int32()),
        ("first", pa.int64()),
        ("sent", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """A document of an index.

    Attributes:
        digest: hex digest of the file or the record that it was read from; "" if it is not known.
        passages: number of its passages.
        first: row of its first passage, counted through all segments.
        sent: whether it came over HTTP, not from the corpus.
    """

    id: str
    digest: str
    passages: int
    first: int
    sent: bool = False


@dataclass(slots=True)
class DocumentTable:
    """Documents in the order of the corpus, by id.

    Example:
        >>> table = grouped(["a-0", "a-1", "b-0"], lambda passage_id: passage_id[0])
        >>> table.rows().tolist(), table.entries["b"].first
        ([0, 1, 2], 2)
    """

    entries: dict[str, DocumentEntry] = field(default_factory=dict)

    def rows(self) -> Int64:
        """Rows of all passages, in the order of the documents."""
        first = np.array([entry.first for entry in self.entries.values()], np.int64)
        count = np.array([entry.passages for entry in self.entries.values()], np.int64)
        return ranges(first, count)

    def write(self, path: Path) -> None:
        """Write the table as an Arrow file."""
        listed = DocumentList()
        with listed.writing(path):
            for entry in self.entries.values():
                listed.add(entry)

    @classmethod
    def read(cls, path: Path) -> DocumentTable:
        """Read what `write` wrote.

        Raises:
            ArtifactError: the file is damaged.
        """
        try:
            with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
                entries = [DocumentEntry(**row) for row in reader.read_all().to_pylist()]
        except (pa.ArrowInvalid, OSError, TypeError) as error:
            hint = "restore it or rebuild the index"
            raise ArtifactError(f"{path} is damaged: {error}", hint=hint) from error
        return cls({entry.id: entry for entry in entries})


class DocumentList:
    """Documents that are listed one by one, in the order of the corpus; memory holds the last few of them.

    Example:
        >>> import tempfile
        >>> path, listed = Path(tempfile.mkdtemp()) / DOCUMENTS_NAME, DocumentList()
        >>> with listed.writing(path):
        ...     listed.append("a.md", "12ab", passages=2)
        ...     listed.append("b.md", "34cd", passages=1)
        >>> DocumentTable.read(path).entries["b.md"].first
        2
    """

    def __init__(self) -> None:
        self._last: list[DocumentEntry] = []
        self._next_row = 0
        self._writer: Any = None

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Write the documents of the `with` block to a file that `DocumentTable` reads."""
        with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), _SCHEMA) as self._writer:
            yield
            self._flush()

    def append(self, id: str, digest: str, *, passages: int) -> None:
        """List a document of the corpus whose passages are the next rows."""
        self.add(DocumentEntry(id, digest, passages, self._next_row))
        self._next_row += passages

    def add(self, entry: DocumentEntry) -> None:
        """List a document whose rows are known."""
        self._last.append(entry)
        if len(self._last) >= _BATCH_ROWS and self._writer is not None:
            self._flush()

    def _flush(self) -> None:
        values = zip(*map(attrgetter(*_SCHEMA.names), self._last), strict=True)
        columns = list(values) or [()] * len(_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
        self._last.clear()


def record_digest(document: Document) -> str:
    """Hex digest of a record's content."""
    held = (document.title, document.text, document.sentences)
    content = json.dumps([*held, document.metadata] if document.metadata else held)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def cut_and_listed(
    documents: Iterable[Document],
    cut: Callable[[Document], list[Passage]],
    listed: DocumentList,
    digests: Mapping[str, str],
) -> Iterator[Passage]:
    """Split documents into passages, and add each document to the list.

    Args:
        digests: digests of files by document id; those of records are computed.
    """
    for document in documents:
        passages = cut(document)
        digest = digests.get(document.id, "") if document.path else record_digest(document)
        listed.append(document.id, digest, passages=len(passages))
        yield from passages


def grouped(passage_ids: Iterable[str], document_of: Callable[[str], str]) -> DocumentTable:
    """The table of an index that has none: neighbouring passages of one document, with unknown digests."""
    table, row = DocumentTable(), 0
    for id, group in itertools.groupby(passage_ids, document_of):
        count = sum(1 for _ in group)
        table.entries[id] = DocumentEntry(id, "", count, row)
        row += count
    return table
