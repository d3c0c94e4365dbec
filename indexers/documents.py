"""The documents of an index: their ids, digests of their files or records, the rows of their passages.

The table is stored beside the passages, so that an update reads only the documents that changed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from rag.core.errors import ArtifactError
from rag.core.files import atomic_path
from rag.core.types import Passage
from rag.data.records import Document

DOCUMENTS_NAME = "documents.arrow"
_BATCH_ROWS = 65_536
_SCHEMA = pa.schema(
    [("id", pa.large_string()), ("digest", pa.string()), ("passages", pa.int32()), ("sent", pa.bool_())]
)


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """A document of an index.

    Attributes:
        digest: hex digest of the file or the record that it was read from; "" if it is not known.
        passages: number of its passages.
        first: row of its first passage; 0 where it has none or they are not stored yet.
        sent: whether it came over HTTP, not from the corpus.
    """

    id: str
    digest: str
    passages: int
    first: int = 0
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """A document that is new, or takes the place of the one with its id; see `DocumentEntry`."""

    id: str
    digest: str
    passages: list[Passage]
    sent: bool = False


def read_document_entries(path: Path) -> dict[str, DocumentEntry]:
    """The documents that a `DocumentList` wrote, by id, in the order of the index.

    Raises:
        ArtifactError: the file is damaged.
    """
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            rows = reader.read_all().select(_SCHEMA.names).to_pylist()
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise ArtifactError(f"{path} is damaged: {error}", hint="restore it or rebuild the index") from error
    firsts = itertools.accumulate((row["passages"] for row in rows), initial=0)
    return {row["id"]: DocumentEntry(**row, first=first) for row, first in zip(rows, firsts, strict=False)}


class DocumentList:
    """Documents that are listed one by one, in the order of the corpus; memory holds the last few of them.

    Example:
        >>> import tempfile
        >>> path, listed = Path(tempfile.mkdtemp()) / DOCUMENTS_NAME, DocumentList()
        >>> with listed.writing(path):
        ...     listed.append("a.md", "12ab", passages=2)
        ...     listed.append("b.md", "34cd", passages=1)
        >>> read_document_entries(path)["b.md"].first
        2
    """

    def __init__(self) -> None:
        self._last: list[DocumentEntry] = []
        self._writer: Any = None

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Write the documents of the `with` block to a file for `read_document_entries`."""
        with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), _SCHEMA) as self._writer:
            yield
            self._flush()

    def append(self, id: str, digest: str, *, passages: int, sent: bool = False) -> None:
        """List a document whose passages are the next rows."""
        self._last.append(DocumentEntry(id, digest, passages, sent=sent))
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
    # the third place was that of sentences: digests of older indexes stay what they were
    content = [document.title, document.text, [], *([document.metadata] if document.metadata else [])]
    return hashlib.blake2b(json.dumps(content).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def list_puts(puts: Iterable[Put], listed: DocumentList) -> Iterator[Passage]:
    """The passages of new documents, each of which is added to the list."""
    for put in puts:
        listed.append(put.id, put.digest, passages=len(put.passages), sent=put.sent)
        yield from put.passages


def group_passages(passage_ids: Iterable[str], document_of: Callable[[str], str]) -> dict[str, DocumentEntry]:
    """The documents of an index that lists none: neighbouring passages of one, with unknown digests."""
    entries, row = dict[str, DocumentEntry](), 0
    for id, group in itertools.groupby(passage_ids, document_of):
        count = sum(1 for _ in group)
        entries[id] = DocumentEntry(id, "", count, row)
        row += count
    return entries
