"""Find the passages of a new version of an index among those of an earlier one, by their content."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from indexers.passages import PassageStore
from rag.core.arrays import Int64
from rag.core.log import Progress

_TEXTS_AT_ONCE = 4096
_KEY = np.dtype([("high", "<u8"), ("low", "<u8")])


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
