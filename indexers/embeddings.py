"""Passage embeddings: a series of `.npy` files (shards); a shard that exists is finished.

A shard is written beside its place and renamed, so a killed run loses at most the shard it was
working on. What the shards were made from is recorded outside: in the manifest of an index, or by
whoever encodes a corpus for itself.

float16 halves the disk and keeps 11 significant bits: for unit vectors an inner product moves by
less than 5e-4 in the worst case and about 1e-5 in practice. "Exact" search is then exact for what
is stored.

Beside the shards lie probes, so that a FAISS index is built without the encoder: vectors of pieces
of passages, as long as questions, on which recall is measured.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import faiss
import numpy as np
from numpy.typing import NDArray

from indexers.passages import PassageStore
from indexers.protocols import PassageEncoder, ReportsProgress
from indexers.settings import SHARD_ROWS, VectorDtype
from indexers.shards import Shard, Stored, divide, link_files
from rag.core.arrays import Float32, Int64, load_npy, save_npy
from rag.core.errors import DataError
from rag.core.files import clean_directory
from rag.core.log import Progress
from rag.core.types import Passage

PROBES_NAME = "probes.npy"
_PROBE_WORDS = 10
_TEXTS_AT_ONCE = 4096
# Bytes of embeddings from which the pages of scattered rows are asked for before they are read.
_LARGE_BYTES = 1 << 31
# A shard is read ahead as a whole where more than one row in so many is wanted.
_MOST_OF_A_SHARD = 8


def shard_name(shard: Shard) -> str:
    """File name of a shard."""
    return f"shard-{shard.number:05d}.npy"


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """How vectors are divided into files: `shard_rows` in each, fewer in the last."""

    rows: int
    dim: int
    dtype: VectorDtype
    shard_rows: int = SHARD_ROWS

    def shards(self) -> list[Shard]:
        """All shards, in order."""
        return divide(self.rows, self.shard_rows)

    def shape(self, shard: Shard) -> tuple[int, int]:
        """Shape of a shard's vectors."""
        return len(shard.rows), self.dim


class EmbeddingShards:
    """Reads finished embeddings by memory map.

    Attributes:
        layout: size of the vectors, and how they are divided into files.
        dim: vector size D.
        dtype: type of the numbers on disk.
        is_large: whether rows are likely to come from the disk.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp())
        >>> layout = ShardLayout(rows=3, dim=2, dtype="float32", shard_rows=2)
        >>> for shard in missing_shards(place, layout):
        ...     store_shard(place, layout, shard, np.full(layout.shape(shard), 7.0, np.float32))
        >>> EmbeddingShards.open(place, layout).rows(np.array([2, 0]))
        array([[7., 7.],
               [7., 7.]], dtype=float32)
    """

    def __init__(self, directory: Path, layout: ShardLayout, shards: list[NDArray[Any]]) -> None:
        self.directory = directory
        self.layout = layout
        self.dim = layout.dim
        self.dtype = layout.dtype
        self._shards = shards
        self.is_large = layout.rows * layout.dim * np.dtype(layout.dtype).itemsize >= _LARGE_BYTES

    @classmethod
    def open(cls, directory: str | Path, layout: ShardLayout) -> EmbeddingShards:
        """Map all shards and check their headers.

        Raises:
            ArtifactError: a file is missing, truncated or in another format; the message names it.
        """
        folder = Path(directory)
        shards = []
        for shard in layout.shards():
            path = folder / shard_name(shard)
            values = load_npy(path, dtype=np.dtype(layout.dtype).type, shape=layout.shape(shard))
            _advise(values, "MADV_RANDOM")  # `blocks` says otherwise when it reads a whole shard
            shards.append(values)
        return cls(folder, layout, shards)

    def __len__(self) -> int:
        return self.layout.rows

    def part(self, first: int, stop: int) -> tuple[int, EmbeddingShards]:
        """The first row of shard file `first`, and the shard files first … stop - 1 by
        themselves.
        """
        layout = self.layout
        start = first * layout.shard_rows
        end = min(stop * layout.shard_rows, layout.rows)
        part = ShardLayout(end - start, layout.dim, layout.dtype, layout.shard_rows)
        return start, EmbeddingShards(self.directory, part, self._shards[first:stop])

    def rows(self, rows: Int64) -> Float32:
        """Vectors (n, D) float32 of `rows` (n,), in that order; reads only the pages they lie
        on.
        """
        rows = np.asarray(rows, dtype=np.int64)
        gathered = np.empty((len(rows), self.dim), self.dtype)
        if not len(rows):
            return _as_float32(gathered)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        if ordered[0] < 0 or ordered[-1] >= len(self):
            raise DataError(
                f"rows {ordered[0]}…{ordered[-1]} are outside of the {len(self)} embeddings"
            )
        shard_rows = self.layout.shard_rows
        numbers, firsts = np.unique(ordered // shard_rows, return_index=True)
        parts = []  # of each shard: its values, the rows within it, and their places in the result
        for number, places in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            parts.append((self._shards[number], rows[places] - number * shard_rows, places))
        # All pages are asked for before the first is waited for.
        for values, within, _ in parts:
            if len(within) > shard_rows // _MOST_OF_A_SHARD:
                _advise(values, "MADV_WILLNEED")
            elif self.is_large:
                _advise(values, "MADV_WILLNEED", within)
        for values, within, places in parts:
            gathered[places] = values[within]
        return _as_float32(gathered)

    def blocks(self) -> Iterator[tuple[int, Float32]]:
        """(first row, vectors (n, D) float32) of every shard in order; float32 shards are not
        copied.
        """
        for number, values in enumerate(self._shards):
            _advise(values, "MADV_WILLNEED")
            yield number * self.layout.shard_rows, _as_float32(values)


def _advise(
    values: NDArray[Any],
    advice: Literal["MADV_RANDOM", "MADV_WILLNEED"],
    rows: NDArray[np.integer[Any]] | None = None,
) -> None:
    """Say how a mapped array will be read: row by row, or all of it, or some rows (n,), soon.

    A cold disk gives 640 scattered rows some tenfold as fast without reading on behind each, and
    five times as fast again when their pages are asked for side by side.
    """
    base: Any = getattr(values.base, "_mmap", None)
    if base is None:
        return
    if rows is None:
        base.madvise(getattr(mmap, advice))
        return
    start = values.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    size = values.strides[0]
    for first in (start + rows * size).tolist():
        page = first - first % mmap.PAGESIZE
        base.madvise(getattr(mmap, advice), page, first + size - page)


def _as_float32(values: NDArray[Any]) -> Float32:
    """Vectors (n, D) in float32; by FAISS, which converts float16 in half of numpy's time."""
    if values.dtype != np.float16 or not len(values):
        return np.ascontiguousarray(values, np.float32)
    codec = faiss.ScalarQuantizer(values.shape[1], faiss.ScalarQuantizer.QT_fp16)
    return cast("Float32", codec.decode(np.ascontiguousarray(values).view(np.uint8)))


def missing_shards(directory: Path, layout: ShardLayout) -> list[Shard]:
    """The shards that are still to be written into a folder, whose only writer the caller is."""
    clean_directory(directory)
    return [shard for shard in layout.shards() if not (directory / shard_name(shard)).is_file()]


def store_shard(directory: Path, layout: ShardLayout, shard: Shard, vectors: Float32) -> None:
    """Write one shard, in this process or another.

    Args:
        vectors: (shard's rows, D).

    Raises:
        DataError: wrong shape, or a value that is not finite in the stored dtype.
    """
    if vectors.shape != layout.shape(shard):
        raise DataError(
            f"the encoder gave vectors of shape {vectors.shape} for rows "
            f"{shard.start}…{shard.stop - 1}, expected {layout.shape(shard)}"
        )
    with np.errstate(over="ignore"):
        stored = vectors.astype(layout.dtype)
    rows = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(rows):
        raise DataError(
            f"the vector of row {shard.start + rows[0]} is not finite as {layout.dtype} "
            f"({len(rows)} such rows in shard {shard.number})",
            hint="use an index type that stores float32 (flat), or check the encoder's weights",
        )
    save_npy(directory / shard_name(shard), stored)


def encode_passages(encoder: PassageEncoder, passages: list[Passage]) -> Float32:
    """Vectors (n, D) of passages, by one call of the encoder."""
    titles = [passage.title for passage in passages]
    return encoder.encode_passages(titles, [passage.text for passage in passages])


def encode_rows(passages: PassageStore, encoder: PassageEncoder, shard: Shard) -> Float32:
    """Vectors (n, D) of a shard's passages, by one call of the encoder."""
    batches = passages.batches(_TEXTS_AT_ONCE, start=shard.start, stop=shard.stop)
    return encode_passages(encoder, list(chain.from_iterable(batches)))


def encode_corpus(
    folder: Path,
    passages: PassageStore,
    encoder: PassageEncoder,
    dtype: VectorDtype,
    *,
    shard_rows: int = SHARD_ROWS,
    stored: Stored[EmbeddingShards] | None = None,
) -> EmbeddingShards:
    """Encode passages, showing progress; after a kill the next call continues behind the finished
    shards.

    Args:
        folder: folder of the shards; those that it has must be of the same passages and encoder.
        shard_rows: rows per shard, the most that a killed attempt loses.
        stored: vectors that need not be made.
    """
    layout = ShardLayout(len(passages), encoder.identity.dim, dtype, shard_rows)
    is_new = np.ones(len(passages), bool) if stored is None else stored.rows < 0
    missing = missing_shards(folder, layout)
    earlier_shards = list[Shard]()
    if stored is not None and stored.vectors.dtype == dtype:
        earlier_shards = stored.vectors.layout.shards()
    total = int(is_new.sum())
    left = sum(int(is_new[shard.start : shard.stop].sum()) for shard in missing)
    with Progress(total, "passages", "encode", initial=total - left) as progress:
        if left and isinstance(encoder, ReportsProgress):
            encoder = encoder.reporting(progress.update)
        finished = total - left
        for shard in missing:
            new_rows = shard.start + np.flatnonzero(is_new[shard.start : shard.stop])
            if stored is None or len(new_rows) == len(shard.rows):
                vectors = encode_rows(passages, encoder, shard)
            elif shard.is_unchanged(stored.rows, earlier_shards):
                link_files([shard_name(shard)], stored.vectors.directory, folder)
                continue
            else:
                earlier_rows = stored.rows[shard.start : shard.stop]
                is_stored = earlier_rows >= 0
                vectors = np.empty(layout.shape(shard), np.float32)
                vectors[is_stored] = stored.vectors.rows(earlier_rows[is_stored])
                if len(new_rows):
                    new_passages = passages.get_many(new_rows)
                    vectors[new_rows - shard.start] = encode_passages(encoder, new_passages)
            store_shard(folder, layout, shard, vectors)
            finished += len(new_rows)
            # An encoder that reports its progress has counted them already.
            progress.update(finished - progress.n)
    return EmbeddingShards.open(folder, layout)


def save_probes(
    directory: Path, passages: PassageStore, encoder: PassageEncoder, count: int, seed: int
) -> None:
    """Store vectors of pieces of ten words from random passages, which are not in the index as
    such.
    """
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(passages), min(count, len(passages)), replace=False))
    texts = []
    for passage in passages.get_many(rows):
        words = passage.text.split() or passage.title.split() or [passage.id]
        start = int(generator.integers(0, max(len(words) - _PROBE_WORDS, 0) + 1))
        texts.append(" ".join(words[start : start + _PROBE_WORDS]))
    vectors = encoder.encode_passages([""] * len(texts), texts)
    save_npy(directory / PROBES_NAME, np.asarray(vectors, dtype=np.float32))


def read_probes(embeddings: EmbeddingShards) -> Float32:
    """Probes (n, D) stored beside the embeddings."""
    return load_npy(embeddings.directory / PROBES_NAME, dtype=np.float32)
