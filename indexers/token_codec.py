"""Compress token vectors: the nearest of many centroids, and the residual in two bits per number.

Cut-offs assign a residual to a bucket, whose mean stands for it; both are per dimension and learnt
from tokens that were not used for the centroids. Vectors are normalised to unit length again when
they are read.

Source: Santhanam et al. 2022, "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late
    Interaction", section 3.3.

Note: the paper has one set of buckets for all dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rag.core.arrays import Float32, Int64

Codes = NDArray[np.unsignedinteger]
BITS = 2  # of a residual's number
_LEVELS = 1 << BITS
_PER_BYTE = 8 // BITS
_SHIFTS = BITS * np.arange(_PER_BYTE)
TRAINING_TOKENS = 32  # sampled tokens for each centroid
_ROUNDS = 4
_HELD_OUT = 65_536  # tokens that buckets are learnt from
_SCANNED_WHOLE = 1024  # up to so many centroids, every vector is compared with all
_ROWS_AT_ONCE = 4096
_TOKENS_AT_ONCE = 1024  # decompressed together: their vectors stay in the cache


def centroid_count(tokens: float) -> int:
    """16·√tokens, rounded down to a power of two.

    Example:
        >>> centroid_count(20_958 * 130), centroid_count(21_015_324 * 110)
        (16384, 524288)
    """
    return 1 << max(0, math.floor(math.log2(16.0 * math.sqrt(max(tokens, 1.0)))))


def code_dtype(centroids: int) -> np.dtype[np.unsignedinteger]:
    """Smallest unsigned dtype that can index `centroids` centroids."""
    return np.dtype(np.uint16 if centroids <= 1 << 16 else np.uint32)


class _Finder:
    """Finds the nearest centroid; of more than 1,024 it compares a sixteenth, chosen by the
    vector's group.

    Args:
        centroids: (C, D) float32.
    """

    def __init__(self, centroids: Float32) -> None:
        self.centroids = centroids
        self.groups = centroids[:0]
        count = len(centroids)
        if count > _SCANNED_WHOLE:
            self.groups = _spherical_means(centroids, 1 << round(math.log2(math.sqrt(count))))
            compared = max(_SCANNED_WHOLE, count // 16)
            self.members = [
                np.argpartition(-(centroids @ group), compared - 1)[:compared]
                for group in self.groups
            ]

    def __call__(self, vectors: Float32) -> Int64:
        """Centroids (T,) of vectors (T, D)."""
        if not len(self.groups):
            return _best(vectors, self.centroids)
        groups = _best(vectors, self.groups)
        order = np.argsort(groups, kind="stable")
        ends = np.searchsorted(groups[order], np.arange(len(self.groups) + 1))
        codes = np.empty(len(vectors), np.int64)
        for members, start, stop in zip(self.members, ends[:-1], ends[1:], strict=True):
            places = order[start:stop]
            codes[places] = members[_best(vectors[places], self.centroids[members])]
        return codes


def _best(vectors: Float32, centroids: Float32) -> Int64:
    """Rows (T,) of the centroids with the largest inner product."""
    parts = []
    for start in range(0, max(1, len(vectors)), _ROWS_AT_ONCE):
        products = vectors[start : start + _ROWS_AT_ONCE] @ centroids.T
        parts.append(products.argmax(1))
    return np.concatenate(parts)


def _spherical_means(points: Float32, count: int) -> Float32:
    """Spherical k-means: unit vectors (count, D), each the direction of the mean of its nearest
    points.

    It starts from the first points, which come in random order.
    """
    centroids = points[:count].copy()
    for _ in range(_ROUNDS):
        codes = _Finder(centroids)(points)
        order = np.argsort(codes, kind="stable")
        used, firsts = np.unique(codes[order], return_index=True)
        sums = np.add.reduceat(points[order], firsts)  # (used, D)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        directions = sums / np.maximum(lengths, 1e-6)
        centroids[used] = np.where(lengths > 1e-6, directions, centroids[used])
    return centroids


def train_codec(sample: Float32, count: int) -> TokenCodec:
    """Train centroids by spherical k-means, then the residuals' buckets on held-out tokens.

    Args:
        sample: (S, D) unit vectors in random order.
        count: number of centroids, but at most a quarter of the sample.
    """
    dim = sample.shape[1]
    held_out = min(_HELD_OUT, len(sample) // 8)
    points = np.ascontiguousarray(sample[held_out:], dtype=np.float32)
    count = max(1, min(count, 1 << int(math.log2(max(1, len(points) // 4)))))
    # Stored in half precision; what is searched is what is stored.
    centroids = _spherical_means(points, count).astype(np.float16).astype(np.float32)
    vectors = sample[:held_out] if held_out else points
    residuals = vectors - centroids[_Finder(centroids)(vectors)]  # (R, D)
    shares = np.arange(1, _LEVELS) / _LEVELS
    cuts = np.quantile(residuals, shares, axis=0).astype(np.float32)  # (3, D)
    edges = np.vstack([residuals.min(0)[None], cuts, residuals.max(0)[None]])
    buckets = (residuals[None] > cuts[:, None]).sum(0)  # (R, D)
    means_of = np.empty((_LEVELS, dim), np.float32)
    for bucket in range(_LEVELS):
        inside = buckets == bucket
        middle = edges[bucket : bucket + 2].mean(0)  # for buckets that are empty because of ties
        means = (residuals * inside).sum(0) / np.maximum(inside.sum(0), 1)
        means_of[bucket] = np.where(inside.any(0), means, middle)
    return TokenCodec(centroids, np.vstack([cuts, means_of]))


@dataclass(frozen=True)
class TokenCodec:
    """Compresses token vectors and restores them.

    Attributes:
        centroids: (C, D) float32, unit vectors rounded to half precision.
        buckets: (3 + 4, D) float32: cut-offs, then the value of each bucket.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> vectors = draw.standard_normal((512, 8), dtype=np.float32)
        >>> vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        >>> codec = train_codec(vectors, 16)
        >>> codes, packed = codec.encode(vectors)
        >>> packed.shape, bool(codec.similarities(codes, packed, vectors).diagonal().mean() > 0.95)
        ((512, 2), True)
    """

    centroids: Float32
    buckets: Float32

    def is_same(self, other: TokenCodec) -> bool:
        """Whether both compress alike."""
        has_same_centroids = np.array_equal(self.centroids, other.centroids)
        return has_same_centroids and np.array_equal(self.buckets, other.buckets)

    @property
    def packed_bytes(self) -> int:
        """Bytes per token's residual."""
        return -(-self.centroids.shape[1] // _PER_BYTE)

    @cached_property
    def _nearest(self) -> Callable[[Float32], Int64]:
        """Vectors (T, D) → centroids (T,)."""
        return _Finder(self.centroids)

    @cached_property
    def _table(self) -> Float32:
        """(bytes · 256, numbers per byte): the values that each byte stands for at each
        position.
        """
        numbers = self.packed_bytes * _PER_BYTE
        values = np.zeros((_LEVELS, numbers), np.float32)
        values[:, : self.centroids.shape[1]] = self.buckets[_LEVELS - 1 :]
        levels = (np.arange(256)[:, None] >> _SHIFTS) & (_LEVELS - 1)  # (256, numbers per byte)
        parts = []
        for start in range(0, numbers, _PER_BYTE):
            parts.append(values[levels, np.arange(start, start + _PER_BYTE)])
        return np.concatenate(parts)

    def squared_residuals(self, packed: NDArray[np.uint8]) -> float:
        """Sum over all tokens of the squared length of their stored residuals (T, bytes)."""
        squares = np.square(self._table, dtype=np.float64).sum(1).reshape(-1, 256)
        total = 0.0
        for byte_number in range(self.packed_bytes):
            total += float(
                np.bincount(packed[:, byte_number], minlength=256) @ squares[byte_number]
            )
        return total

    def encode(self, vectors: Float32) -> tuple[Codes, NDArray[np.uint8]]:
        """Centroids (T,) and packed residuals (T, bytes) of vectors (T, D)."""
        codes = self._nearest(vectors)
        residuals = vectors - self.centroids[codes]
        levels = np.zeros((len(vectors), self.packed_bytes * _PER_BYTE), np.uint8)
        for cut in self.buckets[: _LEVELS - 1]:
            levels[:, : residuals.shape[1]] += residuals > cut
        shifted = levels.reshape(len(levels), self.packed_bytes, _PER_BYTE)
        shifted <<= _SHIFTS.astype(np.uint8)
        return codes.astype(code_dtype(len(self.centroids))), np.bitwise_or.reduce(shifted, axis=2)

    def similarities(self, codes: Codes, packed: NDArray[np.uint8], query: Float32) -> Float32:
        """Inner products (T, q) of restored unit vectors with vectors (q, D), a thousand tokens at
        a time.
        """
        products = np.empty((len(codes), len(query)), np.float32)
        dim = self.centroids.shape[1]
        most = min(len(codes), _TOKENS_AT_ONCE)
        # Buffers, used for every block: they stay in the processor's cache.
        all_places = np.empty((most, self.packed_bytes), np.intp)
        all_values = np.empty((most, self.packed_bytes, _PER_BYTE), np.float32)
        all_centroids = np.empty((most, dim), np.float32)
        for start in range(0, len(codes), _TOKENS_AT_ONCE):
            block = slice(start, start + _TOKENS_AT_ONCE)
            count = len(codes[block])
            places = all_places[:count]
            values = all_values[:count]
            centroids = all_centroids[:count]
            np.copyto(places, packed[block])
            places += 256 * np.arange(self.packed_bytes)
            # `take` is several times as fast with `out` and without checks
            self._table.take(places, axis=0, out=values, mode="clip")
            self.centroids.take(codes[block], axis=0, out=centroids, mode="clip")
            vectors = values.reshape(count, -1)[:, :dim]
            vectors += centroids
            np.matmul(vectors, query.T, out=products[block])
            products[block] /= np.maximum(np.sqrt(np.vecdot(vectors, vectors)), 1e-12)[:, None]
        return products
