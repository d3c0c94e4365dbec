"""Passage embeddings on disk: a series of `.npy` files (shards), written one by one, memory-mapped to read.

Files in the directory: `embeddings.json` (encoder identity, D, dtype, rows), `shard-00000.npy` … and
`ledger.jsonl`, one line for each finished shard with its checksum. A shard is finished once its line
is in the ledger, so a killed run loses at most the shard it was working on.

float16 halves the disk and keeps 11 significant bits: for unit vectors an inner product moves by less than
5e-4 in the worst case and about 1e-5 in practice. "Exact" search is then exact for what is stored.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import faiss as _faiss
import numpy as np
from numpy.typing import NDArray

from indexers.ledger import read_info
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity, FloatArray, IntArray, PassageEncoder, ReportingEncoder
from indexers.settings import VectorDtype
from rag.core.errors import ArtifactError, DataError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import (
    atomic_write_bytes,
    atomic_write_json,
    clean_directory,
    disk_errors,
    remove_temporaries,
    sha256_file,
)
from rag.core.manifest import differences
from rag.core.npy import RowPages, advise, load_npy, save_npy
from rag.core.progress import Progress

# The stubs that FAISS ships lack much of what the library has.
faiss: Any = _faiss
_TEXTS_AT_ONCE = 4096
_SHARD_ROWS = 16_384
_LARGE_BYTES = 1 << 31  # from which the pages of rows are asked for side by side before they are read
_MOST_OF_A_SHARD = 8  # one wanted row in so many: the whole shard is read ahead
HEADER_NAME, LEDGER_NAME = "embeddings.json", "ledger.jsonl"
_log = logging.getLogger(__name__)


def _shard_name(shard: int) -> str:
    return f"shard-{shard:05d}.npy"


@dataclass(frozen=True, slots=True)
class _Header:
    rows: int
    dim: int
    dtype: VectorDtype
    shard_rows: int
    encoder: EncoderIdentity

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    def shard_range(self, shard: int) -> tuple[int, int]:
        return shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> _Header:
        header = cls(**{**value, "encoder": EncoderIdentity.from_json(value["encoder"])})
        if header.dtype not in get_args(VectorDtype):
            raise ValueError(f"dtype {header.dtype!r}")
        return header

    @classmethod
    def read(cls, directory: Path) -> _Header:
        return cls.of(read_info(directory / HEADER_NAME, cls.of))


def _read_ledger(directory: Path) -> dict[int, dict[str, Any]]:
    """Finished shards; a torn last line, left by a kill, is cut off the file."""
    path = directory / LEDGER_NAME
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        atomic_write_bytes(path, whole)
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        return {int(line["shard"]): line for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path} is damaged: {error}", hint="delete the embeddings folder and run again"
        ) from error


def store_shard(directory: Path, shard: int, vectors: FloatArray) -> dict[str, Any]:
    """Write the file of one shard into a directory that an `EmbeddingWriter` began.

    Args:
        vectors: (shard's rows, D).

    Returns:
        The shard's line in the ledger; the shard counts once `EmbeddingWriter.record` has written it.

    Raises:
        DataError: wrong shape, or a value that is not finite in the stored dtype.
        ResourceError: the disk is full.
    """
    header = _Header.read(directory)
    start, stop = header.shard_range(shard)
    if vectors.shape != (stop - start, header.dim):
        raise DataError(
            f"the encoder gave vectors of shape {vectors.shape} for rows {start}…{stop - 1}, "
            f"expected {(stop - start, header.dim)}"
        )
    with np.errstate(over="ignore"):
        stored = vectors.astype(header.dtype)
    finite = np.isfinite(stored).all(axis=1)
    if not finite.all():
        row = start + int(np.flatnonzero(~finite)[0])
        raise DataError(
            f"the vector of row {row} is not finite as {header.dtype} "
            f"({int((~finite).sum())} such rows in shard {shard})",
            hint="use dtype float32, or check the encoder's weights",
        )
    sha256 = save_npy(directory / _shard_name(shard), stored)
    encoder = header.encoder.fingerprint()
    return {"shard": shard, "rows": stop - start, "sha256": sha256, "encoder": encoder}


class EmbeddingWriter:
    """Writes the shards that are not there yet. One writer at a time (the caller holds the directory's lock).

    Args:
        shard_rows: rows per shard, 16,384 by default; the last one may be shorter.

    Raises:
        MismatchedArtifactError: the directory holds shards of another encoder, size or dtype.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        rows: int,
        encoder: EncoderIdentity,
        dtype: VectorDtype = "float16",
        shard_rows: int | None = None,
    ) -> None:
        self.directory = Path(directory)
        per_shard = _SHARD_ROWS if shard_rows is None else shard_rows
        self._header = _Header(rows, encoder.dim, dtype, per_shard, encoder)
        clean_directory(self.directory)
        if (self.directory / HEADER_NAME).exists():
            self._refuse_other(_Header.read(self.directory))
        else:
            atomic_write_json(self.directory / HEADER_NAME, asdict(self._header))
        self._ledger = _read_ledger(self.directory)
        self._drop_damaged()

    def _refuse_other(self, found: _Header) -> None:
        sides = ({**asdict(side), "encoder": side.encoder.comparable()} for side in (found, self._header))
        if changed := differences(*sides):
            raise MismatchedArtifactError(
                f"{self.directory} holds embeddings made with other settings ({changed})",
                hint="continue with the same settings, choose another --out, or add --overwrite",
            )

    def _drop_damaged(self) -> None:
        damaged = [
            shard
            for shard, line in self._ledger.items()
            if not (path := self.directory / _shard_name(shard)).is_file()
            or sha256_file(path) != line["sha256"]
        ]
        if damaged:
            _log.warning(
                "%s: shards %s do not match their checksums and are encoded again", self.directory, damaged
            )
            for shard in damaged:
                del self._ledger[shard]
            self.sort_ledger()

    def sort_ledger(self) -> None:
        """Sort the ledger by shard, since shards may have been finished in another order."""
        lines = "".join(_ledger_line(line) for _, line in sorted(self._ledger.items()))
        atomic_write_bytes(self.directory / LEDGER_NAME, lines.encode())

    @property
    def finished_rows(self) -> int:
        """Rows in finished shards."""
        return sum(line["rows"] for line in self._ledger.values())

    def missing(self) -> Iterator[tuple[int, int, int]]:
        """Shards to write: (shard, first row, one past the last row)."""
        for shard in range(self._header.shards):
            if shard not in self._ledger:
                yield (shard, *self._header.shard_range(shard))

    def completed(self, write: Callable[[Callable[[int], None]], None]) -> EmbeddingShards:
        """The embeddings after `write` has filled the missing shards, with progress shown.

        Args:
            write: calls its argument with the number of passages encoded since the last call.
        """
        with Progress(self._header.rows, "passages", "encode", initial=self.finished_rows) as progress:
            write(progress.update)
        remove_temporaries(self.directory)  # of a node of a cluster that was killed
        self.sort_ledger()
        return EmbeddingShards.open(self.directory)

    def write(self, shard: int, vectors: FloatArray) -> None:
        """Store the vectors (shard's rows, D) of one shard and record it; see `store_shard`."""
        self.record(store_shard(self.directory, shard, vectors))

    def record(self, line: dict[str, Any]) -> None:
        """Count a shard as finished; `line` is what `store_shard` returned, in this process or another."""
        with disk_errors(self.directory), open(self.directory / LEDGER_NAME, "a", encoding="utf-8") as file:
            file.write(_ledger_line(line))
            file.flush()
            os.fsync(file.fileno())
        self._ledger[int(line["shard"])] = line

    def write_missing(self, encode: Callable[[int, int], FloatArray]) -> Iterator[int]:
        """Fill missing shards with the vectors (n, D) that `encode(first row, one past the last)` gives.

        Yields the rows of each when it is done.
        """
        for shard, start, stop in list(self.missing()):
            self.write(shard, encode(start, stop))
            yield stop - start

    def write_passages(
        self, passages: PassageStore, encoder: PassageEncoder, done: Callable[[int], None]
    ) -> Iterator[int]:
        """Fill missing shards with the vectors of `passages`, one shard per call; see `write_missing`.

        Args:
            done: called with the number of passages encoded since the last call: after every batch of a
                `ReportingEncoder`, after every shard of another encoder.
        """
        telling = encoder.reporting(done) if isinstance(encoder, ReportingEncoder) else None
        made_by = telling or encoder

        for rows in self.write_missing(lambda start, stop: encode_rows(passages, made_by, start, stop)):
            if telling is None:
                done(rows)
            yield rows


def encode_rows(passages: PassageStore, encoder: PassageEncoder, start: int, stop: int) -> FloatArray:
    """Vectors (stop - start, D) of some rows, by one call of the encoder."""
    batches = passages.batches(_TEXTS_AT_ONCE, start=start, stop=stop)
    texts = list(itertools.chain.from_iterable(batches))
    return encoder.encode_passages([p.title for p in texts], [p.text for p in texts])


def encode_corpus(
    place: Path,
    passages: PassageStore,
    encoder: PassageEncoder,
    dtype: VectorDtype,
    *,
    shard_rows: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> EmbeddingShards:
    """Encode all passages, showing progress; after a kill the next call continues behind the finished shards.

    Args:
        shard_rows: rows per shard, the most that a killed attempt loses; 16,384 by default.
        check: called after each shard; raises to stop the work.
    """
    rows = len(passages)
    writer = EmbeddingWriter(place, rows=rows, encoder=encoder.identity, dtype=dtype, shard_rows=shard_rows)

    def write(done: Callable[[int], None]) -> None:
        for _ in writer.write_passages(passages, encoder, done):
            check()

    return writer.completed(write)


def _ledger_line(line: dict[str, Any]) -> str:
    return json.dumps(line, sort_keys=True) + "\n"


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
        >>> who = EncoderIdentity("toy", "", dim=2)
        >>> writer = EmbeddingWriter(tempfile.mkdtemp(), rows=3, encoder=who, shard_rows=2)
        >>> done = list(writer.write_missing(lambda a, b: np.full((b - a, 2), a, np.float32)))
        >>> EmbeddingShards.open(writer.directory).rows(np.array([2, 0]))
        array([[2., 2.],
               [0., 0.]], dtype=float32)
    """

    def __init__(self, directory: Path, header: _Header, shards: list[NDArray[Any]]) -> None:
        self.directory, self.encoder = directory, header.encoder
        self.dim, self.dtype = header.dim, header.dtype
        self.shard_rows = header.shard_rows
        self._header, self._shards = header, shards
        self.is_large = header.rows * header.dim * np.dtype(header.dtype).itemsize >= _LARGE_BYTES

    @classmethod
    def open(cls, directory: str | Path) -> EmbeddingShards:
        """Map all shards and check their headers.

        Raises:
            IncompleteArtifactError: some shards are not written yet.
            ArtifactError: a file is missing, truncated or in another format; the message names it.
        """
        place = Path(directory)
        header = _Header.read(place)
        ledger = _read_ledger(place)
        absent = [shard for shard in range(header.shards) if shard not in ledger]
        if absent:
            raise IncompleteArtifactError(
                f"{place} lacks {len(absent)} of {header.shards} embedding shards",
                hint="run the command that builds the index again; it continues where it stopped",
            )
        shapes = [(stop - start, header.dim) for start, stop in map(header.shard_range, range(header.shards))]
        shards = [
            load_npy(place / _shard_name(shard), dtype=header.dtype, shape=shape)
            for shard, shape in enumerate(shapes)
        ]
        for values in shards:
            advise(values, "MADV_RANDOM")  # `blocks` says otherwise when it reads a whole shard
        return cls(place, header, shards)

    def __len__(self) -> int:
        return self._header.rows

    @cached_property
    def _pages(self) -> list[RowPages]:
        return [RowPages(values) for values in self._shards]

    @property
    def shards(self) -> int:
        """Number of shard files."""
        return self._header.shards

    def part(self, first: int, stop: int) -> tuple[int, EmbeddingShards]:
        """The first row of shard file `first`, and the shard files first … stop - 1 by themselves."""
        start, end = self._header.shard_range(first)[0], self._header.shard_range(stop - 1)[1]
        header = replace(self._header, rows=end - start)
        return start, EmbeddingShards(self.directory, header, self._shards[first:stop])

    def checksums(self) -> dict[str, dict[str, Any]]:
        """Size and sha256 of every shard file, from the ledger."""
        return {
            _shard_name(shard): {
                "size_bytes": (self.directory / _shard_name(shard)).stat().st_size,
                "sha256": line["sha256"],
            }
            for shard, line in sorted(_read_ledger(self.directory).items())
        }

    def rows(self, rows: IntArray) -> FloatArray:
        """Vectors (n, D) float32 of `rows` (n,), in that order; reads only the pages they lie on."""
        wanted = np.asarray(rows, dtype=np.int64)
        gathered = np.empty((len(wanted), self.dim), self.dtype)
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        if len(ordered) and (ordered[0] < 0 or ordered[-1] >= len(self)):
            raise DataError(f"rows {ordered[0]}…{ordered[-1]} are outside of the {len(self)} embeddings")
        shard_rows = self.shard_rows
        touched = np.unique(ordered // shard_rows)
        bounds = np.searchsorted(ordered, np.append(touched, touched[-1:] + 1) * shard_rows)
        parts = list(zip(touched.tolist(), bounds[:-1], bounds[1:], strict=True))
        for shard, start, stop in parts:
            if stop - start > shard_rows // _MOST_OF_A_SHARD:
                advise(self._shards[shard], "MADV_WILLNEED")
            elif self.is_large:
                self._pages[shard].will_read(ordered[start:stop] - shard * shard_rows)
        for shard, start, stop in parts:
            gathered[order[start:stop]] = self._shards[shard][ordered[start:stop] - shard * shard_rows]
        return _as_float32(gathered)

    def blocks(self, *, read_whole: bool = True) -> Iterator[tuple[int, FloatArray]]:
        """(first row, vectors (n, D) float32) of every shard in order; float32 shards are not copied.

        `read_whole`: all of a shard will be read, and not only some rows.
        """
        for shard, values in enumerate(self._shards):
            if read_whole:
                advise(values, "MADV_WILLNEED")
            yield shard * self.shard_rows, _as_float32(values)


def _as_float32(values: NDArray[Any]) -> FloatArray:
    """Vectors (n, D) in float32; by FAISS, which converts float16 in half of numpy's time."""
    if values.dtype != np.float16 or not len(values):
        return np.ascontiguousarray(values, np.float32)
    codec = faiss.ScalarQuantizer(values.shape[1], faiss.ScalarQuantizer.QT_fp16)
    return cast("FloatArray", codec.decode(np.ascontiguousarray(values).view(np.uint8)))
