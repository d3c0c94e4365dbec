"""Read passage embeddings by memory map; `indexers.embeddings` writes them and describes the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import faiss
import numpy as np
from numpy.typing import NDArray

from indexers.identity import EncoderIdentity
from indexers.settings import VectorDtype
from rag.core.arrays import Float32, Int64
from rag.core.errors import ArtifactError, DataError, IncompleteArtifactError
from rag.core.files import read_json
from rag.core.npy import advise, load_npy

_LARGE_BYTES = 1 << 31  # from which the pages of rows are asked for side by side before they are read
_MOST_OF_A_SHARD = 8  # one wanted row in so many: the whole shard is read ahead
HEADER_NAME = "embeddings.json"


def shard_name(shard: int) -> str:
    """File name of a shard."""
    return f"shard-{shard:05d}.npy"


@dataclass(frozen=True, slots=True)
class Header:
    """`embeddings.json`: what all shards of a folder share."""

    rows: int
    dim: int
    dtype: VectorDtype
    shard_rows: int
    encoder: EncoderIdentity

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.rows // self.shard_rows)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """First row of a shard, and one past its last."""
        return shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Header:
        """The header in a manifest or in `embeddings.json`; an ArtifactError if it is none."""
        try:
            header = cls(**{**value, "encoder": EncoderIdentity.from_json(value["encoder"])})
            if header.dtype not in get_args(VectorDtype):
                raise ValueError(f"dtype {header.dtype!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{HEADER_NAME} is damaged: {error}", hint="rebuild the index") from error
        return header

    @classmethod
    def read(cls, directory: Path) -> Header:
        """The header of a folder; an ArtifactError names a missing or damaged file."""
        path = directory / HEADER_NAME
        if not path.is_file():
            raise IncompleteArtifactError(f"{path} is missing", hint="run the stage that builds it")
        try:
            return cls.of(read_json(path))
        except DataError as error:
            raise ArtifactError(f"{path} is damaged: {error}", hint="rebuild the index") from error

    def to_json(self) -> dict[str, Any]:
        """Inverse of `of`."""
        return {**asdict(self), "encoder": self.encoder.to_json()}


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
        >>> from indexers.embeddings import begin_shards, store_shard
        >>> place = Path(tempfile.mkdtemp())
        >>> header = Header(3, 2, "float32", 2, EncoderIdentity("toy", "", dim=2))
        >>> for shard, start, stop in begin_shards(place, header):
        ...     store_shard(place, shard, np.full((stop - start, 2), start, np.float32))
        >>> EmbeddingShards.open(place).rows(np.array([2, 0]))
        array([[2., 2.],
               [0., 0.]], dtype=float32)
    """

    def __init__(self, directory: Path, header: Header, shards: list[NDArray[Any]]) -> None:
        self.directory, self.header, self.encoder = directory, header, header.encoder
        self.dim, self.dtype = header.dim, header.dtype
        self.shard_rows = header.shard_rows
        self._shards = shards
        self.is_large = header.rows * header.dim * np.dtype(header.dtype).itemsize >= _LARGE_BYTES

    @classmethod
    def open(cls, directory: str | Path, header: Header | None = None) -> EmbeddingShards:
        """Map all shards and check their headers.

        Args:
            header: what the manifest of an index says of its shards; by default what `embeddings.json` says,
                in a folder by itself.

        Raises:
            ArtifactError: a file is missing, truncated or in another format; the message names it.
        """
        place = Path(directory)
        header = header or Header.read(place)
        shapes = [(stop - start, header.dim) for start, stop in map(header.shard_range, range(header.shards))]
        shards = [
            load_npy(place / shard_name(shard), dtype=header.dtype, shape=shape)
            for shard, shape in enumerate(shapes)
        ]
        for values in shards:
            advise(values, "MADV_RANDOM")  # `blocks` says otherwise when it reads a whole shard
        return cls(place, header, shards)

    def __len__(self) -> int:
        return self.header.rows

    @property
    def shards(self) -> int:
        """Number of shard files."""
        return self.header.shards

    def part(self, first: int, stop: int) -> tuple[int, EmbeddingShards]:
        """The first row of shard file `first`, and the shard files first … stop - 1 by themselves."""
        start, end = self.header.shard_range(first)[0], self.header.shard_range(stop - 1)[1]
        header = replace(self.header, rows=end - start)
        return start, EmbeddingShards(self.directory, header, self._shards[first:stop])

    def rows(self, rows: Int64) -> Float32:
        """Vectors (n, D) float32 of `rows` (n,), in that order; reads only the pages they lie on."""
        rows = np.asarray(rows, dtype=np.int64)
        gathered = np.empty((len(rows), self.dim), self.dtype)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        if len(ordered) and (ordered[0] < 0 or ordered[-1] >= len(self)):
            raise DataError(f"rows {ordered[0]}…{ordered[-1]} are outside of the {len(self)} embeddings")
        touched = np.unique(ordered // self.shard_rows)
        bounds = np.searchsorted(ordered, np.append(touched, touched[-1:] + 1) * self.shard_rows)
        parts = list(zip(touched.tolist(), bounds[:-1], bounds[1:], strict=True))
        for shard, start, stop in parts:
            if stop - start > self.shard_rows // _MOST_OF_A_SHARD:
                advise(self._shards[shard], "MADV_WILLNEED")
            elif self.is_large:
                advise(self._shards[shard], "MADV_WILLNEED", ordered[start:stop] - shard * self.shard_rows)
        for shard, start, stop in parts:
            gathered[order[start:stop]] = self._shards[shard][ordered[start:stop] - shard * self.shard_rows]
        return _as_float32(gathered)

    def blocks(self) -> Iterator[tuple[int, Float32]]:
        """(first row, vectors (n, D) float32) of every shard in order; float32 shards are not copied."""
        for shard, values in enumerate(self._shards):
            advise(values, "MADV_WILLNEED")
            yield shard * self.shard_rows, _as_float32(values)


def _as_float32(values: NDArray[Any]) -> Float32:
    """Vectors (n, D) in float32; by FAISS, which converts float16 in half of numpy's time."""
    if values.dtype != np.float16 or not len(values):
        return np.ascontiguousarray(values, np.float32)
    codec = faiss.ScalarQuantizer(values.shape[1], faiss.ScalarQuantizer.QT_fp16)
    return cast("Float32", codec.decode(np.ascontiguousarray(values).view(np.uint8)))
