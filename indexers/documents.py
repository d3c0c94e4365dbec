"""The documents of an index: their ids, digests of their files or records, the rows of their
passages.

The table is stored beside the passages, so that an update reads only the documents that changed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rag.core.errors import ArtifactError
from rag.core.files import atomic_path
from rag.core.types import Passage
from rag.data.records import Document

DOCUMENTS_NAME = "documents.arrow"
_BATCH_ROWS = 65_536
_SCHEMA = pa.schema(
    [
        ("id", pa.large_string()),
        ("digest", pa.string()),
        ("passages", pa.int32()),
        ("sent", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """A document of an index.

    Attributes:
        digest: hex digest of the file or the record that it was read from; "" if it is not known.
        passages: number of its passages.
        first: row of its first passage.
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


@contextmanager
def writing_documents(path: Path) -> Iterator[Callable[[Put], None]]:
    """A function that lists documents, in the order of their passages; memory holds the last few of
    them.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / DOCUMENTS_NAME
        >>> with writing_documents(path) as list_document:
        ...     list_document(Put("a.md", "12ab", [Passage("a-0", "", "x"), Passage("a-1", "", "y")]))
        ...     list_document(Put("b.md", "34cd", [Passage("b-0", "", "z")]))
        >>> read_document_entries(path)["b.md"].first
        2
    """
    rows = list[dict[str, object]]()
    with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), _SCHEMA) as writer:

        def write() -> None:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))
            rows.clear()

        def list_document(put: Put) -> None:
            entry = {
                "id": put.id,
                "digest": put.digest,
                "passages": len(put.passages),
                "sent": put.sent,
            }
            rows.append(entry)
            if len(rows) >= _BATCH_ROWS:
                write()

        yield list_document
        write()


def read_document_entries(path: Path) -> dict[str, DocumentEntry]:
    """The documents that were listed in a file, by id, in the order of the index.

    Raises:
        ArtifactError: the file is damaged.
    """
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            rows = reader.read_all().select(_SCHEMA.names).to_pylist()
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise ArtifactError(
            f"{path} is damaged: {error}", hint="restore it or rebuild the index"
        ) from error
    firsts = itertools.accumulate((row["passages"] for row in rows), initial=0)
    return {
        row["id"]: DocumentEntry(**row, first=first)
        for row, first in zip(rows, firsts, strict=False)
    }


def record_digest(document: Document) -> str:
    """Hex digest of a record's content."""
    # the third place was that of sentences: digests of older indexes stay what they were
    content = [
        document.title,
        document.text,
        [],
        *([document.metadata] if document.metadata else []),
    ]
    return hashlib.blake2b(
        json.dumps(content).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def group_passages(
    passage_ids: Iterable[str], document_of: Callable[[str], str]
) -> dict[str, DocumentEntry]:
    """The documents of an index that lists none: neighbouring passages of one, with unknown
    digests.
    """
    entries, row = dict[str, DocumentEntry](), 0
    for id, group in itertools.groupby(passage_ids, document_of):
        count = sum(1 for _ in group)
        entries[id] = DocumentEntry(id, "", count, row)
        row += count
    return entries
