"""How the passages of an index are divided into shards, and where an earlier index has them.

Vectors lie in a file per shard. A new version of an index takes over those of passages whose title
and text it had, whatever their ids and order, and whole files where all rows are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from indexers.passages import PassageStore
from rag.core.arrays import Int64
from rag.core.files import atomic_path, link_or_copy
from rag.core.log import Progress

VectorsT = TypeVar("VectorsT")

_TEXTS_AT_ONCE = 4096
_KEY = np.dtype([("high", "<u8"), ("low", "<u8")])


class Shard(NamedTuple):
    """Rows start … stop - 1 of a corpus."""

    number: int
    start: int
    stop: int

    @property
    def rows(self) -> range:
        """The rows."""
        return range(self.start, self.stop)

    def is_unchanged(self, earlier_rows: Int64, shards: list[Shard]) -> bool:
        """Whether an earlier index, divided into `shards`, has the same shard.

        Args:
            earlier_rows: (N,) rows of the corpus in the earlier index.
        """
        return self in shards and np.array_equal(earlier_rows[self.start : self.stop], self.rows)


class Stored(NamedTuple, Generic[VectorsT]):
    """Vectors of an earlier index, so that only passages that it lacks are encoded.

    Attributes:
        vectors: the vectors of passages, or of their tokens.
        rows: (N,) row of each passage of the corpus in the earlier index, see `match_passages`.
    """

    vectors: VectorsT
    rows: Int64


def divide(rows: int, shard_rows: int) -> list[Shard]:
    """The shards of a corpus: `shard_rows` passages in each, fewer in the last.

    Example:
        >>> divide(5, 2)[-1]
        Shard(number=2, start=4, stop=5)
    """
    starts = range(0, rows, shard_rows)
    return [
        Shard(number, start, min(start + shard_rows, rows)) for number, start in enumerate(starts)
    ]


def link_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Take files of an earlier index over into another folder."""
    for name in names:
        with atomic_path(target / name) as temporary:
            link_or_copy(source / name, temporary)


def match_passages(passages: PassageStore, earlier: PassageStore) -> Int64:
    """Rows (N,) in `earlier` that have the same title and text; -1 where there is none.

    Ids do not matter, nor the order. Memory: 24 bytes for each passage of either store.
    """
    if passages.is_same(earlier):
        return np.arange(len(passages))
    keys = _content_keys(passages)
    earlier_keys = _content_keys(earlier)
    order = np.argsort(earlier_keys["high"], kind="stable")
    places = np.searchsorted(earlier_keys["high"][order], keys["high"])
    candidates = order[np.minimum(places, len(order) - 1)]
    return np.where(earlier_keys[candidates] == keys, candidates, -1)


def _content_keys(passages: PassageStore) -> NDArray[np.void]:
    """Hashes (N,) of 128 bits of the passages' titles and texts, in row order."""
    digests = bytearray()
    with Progress(len(passages), "passages", "compare") as progress:
        for batch in passages.batches(_TEXTS_AT_ONCE):
            for passage in batch:
                title = passage.title.encode()
                content = len(title).to_bytes(8, "little") + title + passage.text.encode()
                digests += hashlib.blake2b(content, digest_size=16).digest()
            progress.update(len(batch))
    return np.frombuffer(bytes(digests), dtype=_KEY)
