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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indexers.embedding_shards import (
    HEADER_NAME,
    LEDGER_NAME,
    EmbeddingShards,
    Header,
    read_ledger,
    shard_name,
)
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity, PassageEncoder, ReportingEncoder
from indexers.settings import SHARD_ROWS, VectorDtype
from rag.core.arrays import Bool, Float32
from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.files import (
    atomic_write_bytes,
    atomic_write_json,
    clean_directory,
    disk_errors,
    remove_temporaries,
    sha256_file,
)
from rag.core.manifest import differences
from rag.core.npy import save_npy
from rag.core.progress import Progress

_TEXTS_AT_ONCE = 4096
_log = logging.getLogger(__name__)


def store_shard(directory: Path, shard: int, vectors: Float32) -> dict[str, Any]:
    """Write the file of one shard into a directory that an `EmbeddingWriter` began.

    Args:
        vectors: (shard's rows, D).

    Returns:
        The shard's line in the ledger; the shard counts once `EmbeddingWriter.record` has written it.

    Raises:
        DataError: wrong shape, or a value that is not finite in the stored dtype.
        ResourceError: the disk is full.
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
    finite = np.isfinite(stored).all(axis=1)
    if not finite.all():
        row = start + int(np.flatnonzero(~finite)[0])
        raise DataError(
            f"the vector of row {row} is not finite as {header.dtype} "
            f"({int((~finite).sum())} such rows in shard {shard})",
            hint="use dtype float32, or check the encoder's weights",
        )
    return ledger_line(header, shard, save_npy(directory / shard_name(shard), stored))


def ledger_line(header: Header, shard: int, sha256: str) -> dict[str, Any]:
    """The line that counts a shard as finished."""
    start, stop = header.shard_range(shard)
    return {"shard": shard, "rows": stop - start, "sha256": sha256, "encoder": header.encoder.fingerprint()}


class EmbeddingWriter:
    """Writes the shards that are not there yet. One writer at a time (the caller holds the directory's lock).

    Args:
        shard_rows: rows per shard; the last one may be shorter.

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
        shard_rows: int = SHARD_ROWS,
    ) -> None:
        self.directory = Path(directory)
        self.header = Header(rows, encoder.dim, dtype, shard_rows, encoder)
        clean_directory(self.directory)
        if (self.directory / HEADER_NAME).exists():
            self._refuse_other(Header.read(self.directory))
        else:
            atomic_write_json(self.directory / HEADER_NAME, self.header.to_json())
        self._ledger = read_ledger(self.directory)
        self._drop_damaged()

    def _refuse_other(self, found: Header) -> None:
        sides = ({**side.to_json(), "encoder": side.encoder.comparable()} for side in (found, self.header))
        if changed := differences(*sides):
            raise MismatchedArtifactError(
                f"{self.directory} holds embeddings made with other settings ({changed})",
                hint="continue with the same settings, choose another --out, or add --overwrite",
            )

    def _drop_damaged(self) -> None:
        damaged = [
            shard
            for shard, line in self._ledger.items()
            if not (path := self.directory / shard_name(shard)).is_file()
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
        for shard in range(self.header.shards):
            if shard not in self._ledger:
                yield (shard, *self.header.shard_range(shard))

    def completed(self, write: Callable[[Callable[[int], None]], None]) -> EmbeddingShards:
        """The embeddings after `write` has filled the missing shards, with progress shown.

        Args:
            write: calls its argument with the number of passages encoded since the last call.
        """
        with Progress(self.header.rows, "passages", "encode", initial=self.finished_rows) as progress:
            write(progress.update)
        remove_temporaries(self.directory)  # left by a killed node of a cluster
        self.sort_ledger()
        return EmbeddingShards.open(self.directory)

    def write(self, shard: int, vectors: Float32) -> None:
        """Store the vectors (shard's rows, D) of one shard and record it; see `store_shard`."""
        self.record(store_shard(self.directory, shard, vectors))

    def record(self, line: dict[str, Any]) -> None:
        """Count a shard as finished; `line` is what `store_shard` returned, in this process or another."""
        with disk_errors(self.directory), open(self.directory / LEDGER_NAME, "a", encoding="utf-8") as file:
            file.write(_ledger_line(line))
            file.flush()
            os.fsync(file.fileno())
        self._ledger[int(line["shard"])] = line

    def write_missing(self, encode: Callable[[int, int], Float32]) -> Iterator[int]:
        """Fill missing shards with the vectors (n, D) that `encode(first row, one past the last)` gives.

        Yields the rows of each when it is done.
        """
        for shard, start, stop in list(self.missing()):
            self.write(shard, encode(start, stop))
            yield stop - start


def encode_rows(passages: PassageStore, encoder: PassageEncoder, start: int, stop: int) -> Float32:
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
    shard_rows: int = SHARD_ROWS,
    check: Callable[[], None] = lambda: None,
) -> EmbeddingShards:
    """Encode all passages, showing progress; after a kill the next call continues behind the finished shards.

    Args:
        shard_rows: rows per shard, the most that a killed attempt loses.
        check: called after each shard; raises to stop the work.
    """
    rows = len(passages)
    writer = EmbeddingWriter(place, rows=rows, encoder=encoder.identity, dtype=dtype, shard_rows=shard_rows)

    def write(done: Callable[[int], None]) -> None:
        made_by = encoder.reporting(done) if isinstance(encoder, ReportingEncoder) else encoder
        for count in writer.write_missing(lambda start, stop: encode_rows(passages, made_by, start, stop)):
            if made_by is encoder:  # it does not report its batches itself
                done(count)
            check()

    return writer.completed(write)


def _ledger_line(line: dict[str, Any]) -> str:
    return json.dumps(line, sort_keys=True) + "\n"


def encode_unknown(
    find_known: Callable[[int, int], tuple[Float32, Bool]],
    place: Path,
    passages: PassageStore,
    encoder: PassageEncoder,
    dtype: VectorDtype,
    *,
    shard_rows: int = SHARD_ROWS,
    check: Callable[[], None] = lambda: None,
    take_shard: Callable[[EmbeddingWriter, int], bool] = lambda writer, shard: False,
) -> EmbeddingShards:
    """`encode_corpus`, but vectors that are known already are not computed again.

    Args:
        find_known: for the rows from one to another, vectors (n, D) and which of them are known (n,).
        take_shard: takes over the whole file of a shard, if it can.
    """
    writer = EmbeddingWriter(
        place, rows=len(passages), encoder=encoder.identity, dtype=dtype, shard_rows=shard_rows
    )

    def write(done: Callable[[int], None]) -> None:
        for shard, start, stop in list(writer.missing()):
            if not take_shard(writer, shard):
                vectors, is_known = find_known(start, stop)
                if not is_known.all():
                    new = passages.get_many(np.flatnonzero(~is_known) + start)
                    vectors[~is_known] = encoder.encode_passages(
                        [one.title for one in new], [one.text for one in new]
                    )
                writer.write(shard, vectors)
            done(stop - start)
            check()

    return writer.completed(write)
