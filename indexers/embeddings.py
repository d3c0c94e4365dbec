"""Passage embeddings: a series of `.npy` files (shards), one by one; a shard that is there is
finished.

Each is written beside its place and renamed, so a killed run loses at most the shard it was working
on. Until they are part of an index, whose manifest says it, `embeddings.json` says what they are.

float16 halves the disk and keeps 11 significant bits: for unit vectors an inner product moves by
less than 5e-4 in the worst case and about 1e-5 in practice. "Exact" search is then exact for what
is stored.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from indexers.passages import PassageStore
from indexers.protocols import Identity, PassageEncoder
from indexers.settings import SHARD_ROWS, VectorDtype
from rag.core.arrays import Bool, Float32, Int64, load_npy, save_npy
from rag.core.errors import (
    ArtifactError,
    DataError,
    IncompleteArtifactError,
    MismatchedArtifactError,
)
from rag.core.files import atomic_path, atomic_write_json, clean_directory, link_or_copy, read_json
from rag.core.log import Progress
from rag.core.manifest import differences
from rag.core.types import Passage

_TEXTS_AT_ONCE = 4096
_LARGE_BYTES = (
    1 << 31
)  # from which the pages of rows are asked for side by side before they are read
_MOST_OF_A_SHARD = 8  # one wanted row in so many: the whole shard is read ahead
HEADER_NAME = "embeddings.json"
_KEY = np.dtype([("high", "<u8"), ("low", "<u8")])


def shard_name(shard: int) -> str:
    """File name of a shard."""
    return f"shard-{shard:05d}.npy"


class Header(BaseModel):
    """`embeddings.json`: what all shards of a folder share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    dim: int
    dtype: VectorDtype
    shard_rows: int
    encoder: Identity

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.rows // self.shard_rows)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """First row of a shard, and one past its last."""
        return shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows)

    @classmethod
    def read(cls, directory: Path) -> Header:
        """The header of a folder; an ArtifactError names a missing or damaged file."""
        path = directory / HEADER_NAME
        if not path.is_file():
            raise IncompleteArtifactError(f"{path} is missing", hint="run the stage that builds it")
        try:
            return cls.model_validate(read_json(path))
        except (DataError, ValidationError) as error:
            raise ArtifactError(f"{path} is damaged: {error}", hint="rebuild the index") from error


class EmbeddingShards:
    """Reads finished embeddings by memory map.

    Attributes:
        encoder: identity of the encoder that made the vectors.
        dim: vector size D.
        dtype: type of the numbers on disk.
        shard_rows: rows per file.
        is_large: whether rows are likely to come from the disk.

    Example:
        >>> import tempfile
        >>> from indexers.protocols import EncoderIdentity
        >>> place = Path(tempfile.mkdtemp())
        >>> toy = EncoderIdentity("toy", "", dim=2)
        >>> header = Header(rows=3, dim=2, dtype="float32", shard_rows=2, encoder=toy)
        >>> for shard, start, stop in begin_shards(place, header):
        ...     store_shard(place, shard, np.full((stop - start, 2), start, np.float32))
        >>> EmbeddingShards.open(place).rows(np.array([2, 0]))
        array([[2., 2.],
               [0., 0.]], dtype=float32)
    """

    def __init__(self, directory: Path, header: Header, shards: list[NDArray[Any]]) -> None:
        self.directory = directory
        self.header = header
        self.encoder = header.encoder
        self.dim = header.dim
        self.dtype = header.dtype
        self.shard_rows = header.shard_rows
        self._shards = shards
        self.is_large = header.rows * header.dim * np.dtype(header.dtype).itemsize >= _LARGE_BYTES

    @classmethod
    def open(cls, directory: str | Path, header: Header | None = None) -> EmbeddingShards:
        """Map all shards and check their headers.

        Args:
            header: what the manifest of an index says of its shards; by default what
                `embeddings.json` says, in a folder by itself.

        Raises:
            ArtifactError: a file is missing, truncated or in another format; the message names it.
        """
        place = Path(directory)
        header = header or Header.read(place)
        shards = []
        for shard in range(header.shards):
            start, stop = header.shard_range(shard)
            values = load_npy(
                place / shard_name(shard), dtype=header.dtype, shape=(stop - start, header.dim)
            )
            _advise(values, "MADV_RANDOM")  # `blocks` says otherwise when it reads a whole shard
            shards.append(values)
        return cls(place, header, shards)

    def __len__(self) -> int:
        return self.header.rows

    def part(self, first: int, stop: int) -> tuple[int, EmbeddingShards]:
        """The first row of shard file `first`, and the shard files first … stop - 1 by
        themselves.
        """
        start = self.header.shard_range(first)[0]
        end = self.header.shard_range(stop - 1)[1]
        header = self.header.model_copy(update={"rows": end - start})
        return start, EmbeddingShards(self.directory, header, self._shards[first:stop])

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
        shards, starts = np.unique(ordered // self.shard_rows, return_index=True)
        parts = []  # of each shard: its values, the rows within it, and their places in the result
        for shard, start, stop in zip(
            shards.tolist(), starts, [*starts[1:], len(ordered)], strict=True
        ):
            within = ordered[start:stop] - shard * self.shard_rows
            parts.append((self._shards[shard], within, order[start:stop]))
        for values, within, _ in parts:
            if len(within) > self.shard_rows // _MOST_OF_A_SHARD:
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
        for shard, values in enumerate(self._shards):
            _advise(values, "MADV_WILLNEED")
            yield shard * self.shard_rows, _as_float32(values)


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
    start, size = values.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data, values.strides[0]
    for first in (start + rows * size).tolist():
        page = first - first % mmap.PAGESIZE
        base.madvise(getattr(mmap, advice), page, first + size - page)


def _as_float32(values: NDArray[Any]) -> Float32:
    """Vectors (n, D) in float32; by FAISS, which converts float16 in half of numpy's time."""
    if values.dtype != np.float16 or not len(values):
        return np.ascontiguousarray(values, np.float32)
    codec = faiss.ScalarQuantizer(values.shape[1], faiss.ScalarQuantizer.QT_fp16)
    return cast("Float32", codec.decode(np.ascontiguousarray(values).view(np.uint8)))


def header_of(
    passages: PassageStore, encoder: PassageEncoder, dtype: VectorDtype, shard_rows: int
) -> Header:
    """The header of the vectors that an encoder gives passages."""
    identity = encoder.identity
    return Header(
        rows=len(passages),
        dim=identity.dim,
        dtype=dtype,
        shard_rows=shard_rows,
        encoder=identity,
    )


def begin_shards(directory: Path, header: Header) -> list[tuple[int, int, int]]:
    """Begin a folder of embeddings, or go on with it; the caller is its only writer.

    Returns:
        The shards that are missing: (shard, first row, one past the last row).

    Raises:
        MismatchedArtifactError: the folder holds shards of another encoder, size or dtype.
    """
    clean_directory(directory)
    if (directory / HEADER_NAME).exists():
        sides = (
            {**side.model_dump(), "encoder": side.encoder.comparable()}
            for side in (Header.read(directory), header)
        )
        changed = differences(*sides)
        if changed:
            raise MismatchedArtifactError(
                f"{directory} holds embeddings made with other settings ({changed})",
                hint="continue with the same settings, choose another --out, or add --overwrite",
            )
    else:
        atomic_write_json(directory / HEADER_NAME, header.model_dump())
    shards = (
        shard for shard in range(header.shards) if not (directory / shard_name(shard)).is_file()
    )
    return [(shard, *header.shard_range(shard)) for shard in shards]


def store_shard(directory: Path, shard: int, vectors: Float32) -> None:
    """Write one shard, in this process or another, into a folder that was begun.

    Args:
        vectors: (shard's rows, D).

    Raises:
        DataError: wrong shape, or a value that is not finite in the stored dtype.
    """
    header = Header.read(directory)
    start, stop = header.shard_range(shard)
    if vectors.shape != (stop - start, header.dim):
        raise DataError(
            f"the encoder gave vectors of shape {vectors.shape} for rows {start}…{stop - 1}, "
            f"expected {(stop - start, header.dim)}"
        )
    with np.errstate(over="ignore"):
        stored = vectors.astype(header.dtype)
    rows = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(rows):
        raise DataError(
            f"the vector of row {start + rows[0]} is not finite as {header.dtype} ({len(rows)} such rows in "
            f"shard {shard})",
            hint="use an index type that stores float32 (flat), or check the encoder's weights",
        )
    save_npy(directory / shard_name(shard), stored)


class StoredVectors:
    """Vectors of passages in an earlier index, so that only new or changed ones are encoded.

    A passage whose title and text are there gets its vector from there; ids do not matter, nor the
    order.

    Attributes:
        directory: folder of the vectors.
        reused: number of passages of the corpus encoded last whose vector was there.

    Memory: 24 bytes for each passage of the earlier index, and for each of the corpus.
    """

    def __init__(self, passages: PassageStore, embeddings: EmbeddingShards) -> None:
        self.directory = embeddings.directory
        self._passages = passages
        self._embeddings = embeddings
        self._rows = np.empty(0, np.int64)
        self.reused = 0

    def locate(self, passages: PassageStore) -> Bool:
        """Find the passages of a corpus in the earlier index; (N,): which of them it lacks."""
        if passages.is_same(self._passages):
            self._rows = np.arange(len(passages))
        else:
            keys = _read_keys(passages)
            stored = _read_keys(self._passages)
            order = np.argsort(stored["high"], kind="stable")
            places = np.searchsorted(stored["high"][order], keys["high"])
            candidates = order[np.minimum(places, len(order) - 1)]
            self._rows = np.where(stored[candidates] == keys, candidates, -1)
        is_new: Bool = self._rows < 0
        self.reused = int((~is_new).sum())
        return is_new

    def vectors(self, start: int, stop: int) -> Float32:
        """(n, D), filled where a passage has a vector."""
        rows = self._rows[start:stop]
        vectors = np.empty((len(rows), self._embeddings.dim), np.float32)
        vectors[rows >= 0] = self._embeddings.rows(rows[rows >= 0])
        return vectors

    def link_shard(self, directory: Path, header: Header, shard: int) -> bool:
        """Take over a whole file, where the rows of a shard are those of a stored one."""
        (start, stop), stored = header.shard_range(shard), self._embeddings.header
        if (
            (stored.dtype, stored.shard_rows) != (header.dtype, header.shard_rows)
            or shard >= stored.shards
            or stored.shard_range(shard) != (start, stop)
            or not np.array_equal(self._rows[start:stop], np.arange(start, stop))
        ):
            return False
        with atomic_path(directory / shard_name(shard)) as temporary:
            link_or_copy(self._embeddings.directory / shard_name(shard), temporary)
        return True


def _read_keys(passages: PassageStore) -> NDArray[np.void]:
    """Hashes (N,) of 128 bits of the passages' titles and texts, in row order."""
    digests = bytearray()
    with Progress(len(passages), "passages", "compare") as progress:
        for batch in passages.batches(_TEXTS_AT_ONCE):
            for passage in batch:
                head = passage.title.encode()
                content = len(head).to_bytes(8, "little") + head + passage.text.encode()
                digests += hashlib.blake2b(content, digest_size=16).digest()
            progress.update(len(batch))
    return np.frombuffer(bytes(digests), dtype=_KEY)


def encode_passages(encoder: PassageEncoder, passages: list[Passage]) -> Float32:
    """Vectors (n, D) of passages, by one call of the encoder."""
    titles = [passage.title for passage in passages]
    return encoder.encode_passages(titles, [passage.text for passage in passages])


def encode_rows(passages: PassageStore, encoder: PassageEncoder, start: int, stop: int) -> Float32:
    """Vectors (stop - start, D) of some rows, by one call of the encoder."""
    batches = passages.batches(_TEXTS_AT_ONCE, start=start, stop=stop)
    return encode_passages(encoder, list(chain.from_iterable(batches)))


def encode_corpus(
    place: Path,
    passages: PassageStore,
    encoder: PassageEncoder,
    dtype: VectorDtype,
    *,
    shard_rows: int = SHARD_ROWS,
    stored: StoredVectors | None = None,
) -> EmbeddingShards:
    """Encode passages, showing progress; after a kill the next call continues behind the finished
    shards.

    Args:
        shard_rows: rows per shard, the most that a killed attempt loses.
        stored: vectors that need not be made.
    """
    lacks = np.ones(len(passages), bool) if stored is None else stored.locate(passages)
    header = header_of(passages, encoder, dtype, shard_rows)
    missing = begin_shards(place, header)
    total = int(lacks.sum())
    left = sum(int(lacks[start:stop].sum()) for _, start, stop in missing)
    with Progress(total, "passages", "encode", initial=total - left) as progress:
        reporting = getattr(encoder, "reporting", None)
        made_by = encoder if reporting is None else reporting(progress.update)
        for shard, start, stop in missing:
            is_new = lacks[start:stop]
            if stored is None or is_new.all():
                vectors = encode_rows(passages, made_by, start, stop)
            elif stored.link_shard(place, header, shard):
                continue
            else:
                vectors = stored.vectors(start, stop)
                if is_new.any():
                    new = passages.get_many(np.flatnonzero(is_new) + start)
                    vectors[is_new] = encode_passages(made_by, new)
            store_shard(place, shard, vectors)
            if made_by is encoder:  # it does not report its batches itself
                progress.update(int(is_new.sum()))
    return EmbeddingShards.open(place)
