"""Compressed token vectors on disk, shard by shard.

Files in the directory: `centroids.npy`, `buckets.npy`, for each shard of passages
`codes-00000.npy`, `residuals-00000.npy` and, written last, `lengths-00000.npy`; `lists.npy` (the
passages of every centroid, end to end) with `list_ends.npy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexers.shards import divide
from indexers.token_codec import BITS, Codes, TokenCodec, code_dtype
from rag.config import Config
from rag.core.arrays import Int64, load_npy, ranges

CENTROIDS_NAME = "centroids.npy"
BUCKETS_NAME = "buckets.npy"
LISTS_NAME = "lists.npy"
ENDS_NAME = "list_ends.npy"


class TokenInfo(Config):
    """What the manifest says of token vectors.

    Attributes:
        rows, tokens: number of passages, and of their vectors.
        bits: of a residual's number.
        list_entries: total length of the centroids' lists.
        shard_rows, shard_tokens: passages per shard, and vectors of each shard.
        error: mean squared length of the residuals.
        trained_tokens, trained_error: the number of vectors, and the error, of the version of the
            index that the centroids were trained for.
    """

    index_type: str = "plaid"
    rows: int
    tokens: int
    dim: int
    bits: int = BITS
    centroids: int
    list_entries: int = 0
    shard_rows: int
    seed: int
    shard_tokens: list[int]
    error: float = 0.0
    trained_tokens: int = 0
    trained_error: float = 0.0


def shard_files(shard: int) -> tuple[str, str, str]:
    """Names of a shard's codes, residuals and lengths; the last of them says that it is finished.

    Example:
        >>> shard_files(3)[0]
        'codes-00003.npy'
    """
    return (f"codes-{shard:05d}.npy", f"residuals-{shard:05d}.npy", f"lengths-{shard:05d}.npy")


def load_codec(directory: Path) -> TokenCodec:
    """The codec of a directory; an ArtifactError names a file that is missing or damaged."""
    centroids = load_npy(directory / CENTROIDS_NAME, dtype=np.float16)
    shape = (2 ** (BITS + 1) - 1, centroids.shape[1])
    buckets = load_npy(directory / BUCKETS_NAME, dtype=np.float32, shape=shape)
    return TokenCodec(centroids.astype(np.float32), buckets)


@dataclass(frozen=True, slots=True)
class _MappedShard:
    """One mapped shard: codes (T,), residuals (T, bytes), the first token of each passage (rows +
    1,).
    """

    codes: Codes
    residuals: NDArray[np.uint8]
    starts: Int64


class TokenShards:
    """Reads finished token vectors by memory map.

    Attributes:
        divided: all shards, in order.

    Raises:
        ArtifactError: a file is missing, truncated or in another format; the message names it.
    """

    def __init__(self, directory: Path, info: TokenInfo) -> None:
        self.directory = directory
        self.info = info
        self.codec = load_codec(directory)
        self.divided = divide(info.rows, info.shard_rows)
        self._shards = list[_MappedShard]()
        code_type = code_dtype(info.centroids).type
        for shard, tokens in zip(self.divided, info.shard_tokens, strict=True):
            codes, residuals, lengths = (directory / name for name in shard_files(shard.number))
            token_counts = load_npy(lengths, dtype=np.uint16, shape=(len(shard.rows),))
            mapped = _MappedShard(
                load_npy(codes, dtype=code_type, shape=(tokens,)),
                load_npy(residuals, dtype=np.uint8, shape=(tokens, self.codec.packed_bytes)),
                np.concatenate([[0], np.cumsum(token_counts, dtype=np.int64)]),
            )
            self._shards.append(mapped)

    def __len__(self) -> int:
        return self.info.rows

    def codes(self, rows: Int64) -> tuple[Codes, Int64]:
        """Codes (T,) of the tokens of sorted `rows` (n,), end to end, and their numbers (n,)."""
        located, lengths = self._locate(rows)
        return np.concatenate([shard.codes.take(places) for shard, places in located]), lengths

    def tokens(self, rows: Int64) -> tuple[Codes, NDArray[np.uint8], Int64]:
        """Codes (T,) and residuals (T, bytes) of sorted `rows` (n,), and their numbers (n,)."""
        located, lengths = self._locate(rows)
        codes = np.concatenate([shard.codes.take(places) for shard, places in located])
        residuals = [shard.residuals.take(places, axis=0) for shard, places in located]
        return codes, np.concatenate(residuals), lengths

    def _locate(self, rows: Int64) -> tuple[list[tuple[_MappedShard, Int64]], Int64]:
        """The tokens of sorted `rows` in each shard, and their numbers (n,)."""
        shard_rows = self.info.shard_rows
        located = list[tuple[_MappedShard, Int64]]()
        counts = list[Int64]()
        for number in np.unique(rows // shard_rows).tolist():
            shard = self._shards[number]
            first_row = number * shard_rows
            first, stop = np.searchsorted(rows, [first_row, first_row + shard_rows])
            within = rows[first:stop] - first_row
            begins = shard.starts[within]
            lengths = shard.starts[within + 1] - begins
            located.append((shard, ranges(begins, lengths)))
            counts.append(lengths)
        return located, np.concatenate(counts)
