"""Build token vectors on disk: encode, compress and list by centroid, shard by shard.

A new version of an index takes over the codes of the passages that it had, under the centroids that
it had, while these fit: see `MOST_ERROR` and `MOST_GROWTH`.

Beside the files of `indexers.token_files`, the directory holds during a build `sample.npy` and
`sample_rows.npy` (row, tokens): passages that were encoded for the centroids.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexers.passages import PassageStore
from indexers.protocols import TokenEncoder
from indexers.settings import SHARD_ROWS
from indexers.shards import Shard, Stored, divide, link_files
from indexers.token_codec import (
    TRAINING_TOKENS,
    Codes,
    TokenCodec,
    centroid_count,
    train_codec,
)
from indexers.token_files import (
    BUCKETS_NAME,
    CENTROIDS_NAME,
    ENDS_NAME,
    LISTS_NAME,
    TokenInfo,
    TokenShards,
    load_codec,
    shard_files,
)
from rag.core.arrays import Int64, load_npy, ranges, save_npy
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path, clean_directory
from rag.core.log import Progress
from rag.core.types import Passage

# An update trains the centroids anew, and encodes all passages, when the mean squared length of the
# residuals is more than so many times that of the version that the centroids were trained for …
MOST_ERROR = 1.1
# … or the corpus has more than so many times the tokens of that version: it is due twice the
# centroids.
MOST_GROWTH = 4
_SAMPLE_NAME = "sample.npy"
_SAMPLE_ROWS_NAME = "sample_rows.npy"
_TEXTS_AT_ONCE = 1024  # passages whose token vectors are in memory together
_SAMPLED_TOKENS = 1 << 16  # at least, if the corpus has as many
_log = logging.getLogger(__name__)
_Float16 = NDArray[np.float16]
_Block = tuple[Codes, NDArray[np.uint8], NDArray[np.uint16]]


def build_tokens(
    passages: PassageStore,
    directory: Path,
    encoder: TokenEncoder,
    *,
    shard_rows: int = SHARD_ROWS,
    seed: int = 0,
    stored: Stored[TokenShards] | None = None,
) -> TokenInfo:
    """Encode passages, compress their token vectors and write the inverted lists.

    Finished shards of an interrupted build are kept.

    A random sample of passages is encoded first, for centroids and buckets: 32 tokens for each
    centroid. Its vectors are saved, so that no passage is encoded twice. All vectors are rounded to
    half precision before they are compressed.

    Args:
        shard_rows: passages per shard, the most a killed run can lose.
        seed: random seed of the sample and the centroids.
        stored: vectors of an earlier version of the index. Its `rows` become -1 if they are not
            taken over, so that the caller sees it.

    Raises:
        ConfigError: the encoder makes one vector per text, or vectors that are not of unit length.
        DataError: a vector is not finite, or a passage has none.
    """
    if not encoder.identity.normalize:
        raise ConfigError(
            f"{encoder.identity.name} makes token vectors of any length (normalize: false), an "
            "index of tokens keeps only their directions",
            hint="give a ColBERT model whose vectors have unit length: train it without "
            "normalize=false",
        )
    clean_directory(directory)
    build = _Build(passages, directory, encoder, shard_rows, seed, stored)
    info = build.compress()
    has_more_error = info.error > MOST_ERROR * info.trained_error
    if has_more_error or info.tokens > MOST_GROWTH * info.trained_tokens:
        build.start_over()
        info = build.compress()
    entries = build.list_passages(info.centroids)
    for name in (_SAMPLE_ROWS_NAME, _SAMPLE_NAME):
        (directory / name).unlink(missing_ok=True)
    return info.model_copy(update={"list_entries": entries})


@dataclass
class _Build:
    """One build in its directory.

    Attributes:
        stored: vectors of an earlier version, while the build has its centroids.
    """

    passages: PassageStore
    directory: Path
    encoder: TokenEncoder
    shard_rows: int
    seed: int
    stored: Stored[TokenShards] | None

    @cached_property
    def _shards(self) -> list[Shard]:
        return divide(len(self.passages), self.shard_rows)

    def compress(self) -> TokenInfo:
        """Write centroids and shards, without the lists; returns what they hold."""
        codec = self._codec()
        self._write_shards(codec)
        shard_tokens = [int(self._lengths(shard).sum()) for shard in self._shards]
        tokens = sum(shard_tokens)
        squares = 0.0
        for shard in self._shards:
            squares += codec.squared_residuals(self._load(shard_files(shard.number)[1]))
        error = squares / tokens
        trained_tokens = tokens
        trained_error = error
        if self.stored is not None:
            trained_tokens = self.stored.vectors.info.trained_tokens
            trained_error = self.stored.vectors.info.trained_error
        return TokenInfo(
            rows=len(self.passages),
            tokens=tokens,
            dim=codec.centroids.shape[1],
            centroids=len(codec.centroids),
            shard_rows=self.shard_rows,
            seed=self.seed,
            shard_tokens=shard_tokens,
            error=error,
            trained_tokens=trained_tokens,
            trained_error=trained_error,
        )

    def start_over(self) -> None:
        """Remove what was made with the centroids of the earlier version, and do without it."""
        _log.info("%s: the centroids are trained anew", self.directory)
        # Lengths first, because they say that a shard is finished. The sample stays: it was encoded
        # for new centroids.
        for pattern in ("lengths-*.npy", "[!s]*.npy"):
            for path in self.directory.glob(pattern):
                path.unlink()
        self._forget_stored()

    def _forget_stored(self) -> None:
        if self.stored is not None:
            # The caller's array, too: it counts by it what was taken over.
            self.stored.rows[:] = -1
        self.stored = None

    def _load(self, name: str) -> np.ndarray:
        return np.asarray(np.load(self.directory / name, mmap_mode="r", allow_pickle=False))

    def _encode(self, texts: Sequence[Passage]) -> tuple[_Float16, Int64]:
        titles = [passage.title for passage in texts]
        vectors = self.encoder.passage_tokens(titles, [passage.text for passage in texts])
        if vectors.lengths is None:
            raise ConfigError(
                f"{self.encoder.identity.name} makes one vector per text, a token index needs one "
                "per token",
                hint="give a ColBERT model, or another type of index",
            )
        values = np.asarray(vectors.values, dtype=np.float16)
        lengths = np.asarray(vectors.lengths)
        if not np.isfinite(values).all():
            raise DataError("a token vector is not finite", hint="check the encoder's weights")
        if not lengths.all():
            empty = texts[int(np.flatnonzero(lengths == 0)[0])]
            raise DataError(
                f"passage {empty.id!r} has no token that counts", hint="leave it out of the corpus"
            )
        return values, lengths

    def _codec(self) -> TokenCodec:
        """The codec that an interrupted run saved, else that of the earlier version, or a new one."""
        names = (CENTROIDS_NAME, BUCKETS_NAME)
        is_saved = all((self.directory / name).is_file() for name in names)
        if not is_saved:
            if self.stored is None:
                self._train()
            else:
                link_files(names, self.stored.vectors.directory, self.directory)
        codec = load_codec(self.directory)
        if self.stored is not None and not codec.is_same(self.stored.vectors.codec):
            self._forget_stored()
        return codec

    def _train(self) -> None:
        """Train a codec on a sample of the passages, and save it."""
        rng = np.random.default_rng(self.seed)
        # Drawn even if a sample is there, so that the vectors are shuffled alike.
        order = rng.permutation(len(self.passages))
        if not (self.directory / _SAMPLE_ROWS_NAME).is_file():
            self._draw_sample(order)
        values = self._load(_SAMPLE_NAME)
        count = len(self._load(_SAMPLE_ROWS_NAME))
        tokens = len(values) / count * len(self.passages)  # of the corpus
        _log.info(
            "%s: %d tokens of %d passages train the centroids", self.directory, len(values), count
        )
        shuffled = values[rng.permutation(len(values))].astype(np.float32)
        codec = train_codec(shuffled, centroid_count(tokens))
        save_npy(self.directory / CENTROIDS_NAME, codec.centroids.astype(np.float16))
        save_npy(self.directory / BUCKETS_NAME, codec.buckets)

    def _draw_sample(self, order: Int64) -> None:
        """Encode the first passages of `order`, as many as the centroids need."""
        values = list[_Float16]()
        rows_and_lengths = list[Int64]()
        passages = 0
        tokens = 0
        needed = _SAMPLED_TOKENS
        with Progress(None, "tokens", "sample") as progress:
            while passages < len(order) and tokens < needed:
                rows = np.sort(order[passages : passages + _TEXTS_AT_ONCE])
                vectors, lengths = self._encode(self.passages.get_many(rows))
                values.append(vectors)
                rows_and_lengths.append(np.stack([rows, lengths], 1))
                passages += len(rows)
                tokens += len(vectors)
                corpus_tokens = tokens / passages * len(order)  # by the mean so far
                # A tenth more, because `train_codec` holds some tokens out.
                sample_tokens = 1.1 * TRAINING_TOKENS * centroid_count(corpus_tokens)
                needed = max(_SAMPLED_TOKENS, math.ceil(sample_tokens))
                progress.update(len(vectors))
        save_npy(self.directory / _SAMPLE_NAME, np.concatenate(values))
        save_npy(self.directory / _SAMPLE_ROWS_NAME, np.concatenate(rows_and_lengths))

    def _sampled(self) -> dict[int, _Float16]:
        """Vectors of the sample's passages by row, mapped."""
        if not (self.directory / _SAMPLE_ROWS_NAME).is_file():
            return {}
        rows, lengths = load_npy(self.directory / _SAMPLE_ROWS_NAME, dtype=np.int64).T
        values = load_npy(self.directory / _SAMPLE_NAME, dtype=np.float16)
        parts = np.split(values, np.cumsum(lengths)[:-1])
        return dict(zip(rows.tolist(), parts, strict=True))

    def _write_shards(self, codec: TokenCodec) -> None:
        """Write the shards that are missing: taken over as files, or block by block."""
        sample = self._sampled()
        missing = [
            shard
            for shard in self._shards
            if not (self.directory / shard_files(shard.number)[-1]).is_file()
        ]
        total = len(self.passages)
        n_missing = sum(len(shard.rows) for shard in missing)
        with Progress(total, "passages", "encode", initial=total - n_missing) as progress:
            for shard in missing:
                stored = self.stored
                if stored is not None and shard.is_unchanged(stored.rows, stored.vectors.divided):
                    names = shard_files(shard.number)
                    link_files(names, stored.vectors.directory, self.directory)
                    progress.update(len(shard.rows))
                    continue
                blocks = list[_Block]()
                row = shard.start
                for passages in self.passages.batches(_TEXTS_AT_ONCE, start=row, stop=shard.stop):
                    rows = np.arange(row, row + len(passages))
                    blocks.append(self._block(rows, passages, codec, sample))
                    row += len(passages)
                    progress.update(len(passages))
                columns = zip(*blocks, strict=True)
                for name, arrays in zip(shard_files(shard.number), columns, strict=True):
                    save_npy(self.directory / name, np.concatenate(arrays))

    def _block(
        self,
        rows: Int64,
        passages: Sequence[Passage],
        codec: TokenCodec,
        sample: dict[int, _Float16],
    ) -> _Block:
        """Codes (T,), residuals (T, bytes) and lengths (n,) of passages, stored or encoded anew."""
        stored_rows = np.full(len(rows), -1)
        if self.stored is not None:
            stored_rows = self.stored.rows[rows]
        new = np.flatnonzero(stored_rows < 0)
        vectors = self._vectors(rows[new], [passages[n] for n in new.tolist()], sample)
        lengths = np.array([len(part) for part in vectors], np.int64)
        codes, residuals = codec.encode(np.concatenate([codec.centroids[:0], *vectors]))
        known = np.flatnonzero(stored_rows >= 0)
        if self.stored is not None and len(known):
            # The stored version is read in the order of its rows.
            known = known[np.argsort(stored_rows[known], kind="stable")]
            found = self.stored.vectors.tokens(stored_rows[known])
            codes = np.concatenate([codes, found[0]])
            residuals = np.concatenate([residuals, found[1]])
            lengths = np.concatenate([lengths, found[2]])
        # New passages come first, then those that are known: back into the order of rows.
        order = np.argsort(np.concatenate([new, known]))
        starts = np.cumsum(lengths) - lengths
        tokens = ranges(starts[order], lengths[order])
        return codes[tokens], residuals[tokens], lengths[order].astype(np.uint16)

    def _vectors(
        self, rows: Int64, passages: Sequence[Passage], sample: dict[int, _Float16]
    ) -> list[_Float16]:
        """Vectors (L, D) of each passage: from the sample, or encoded now."""
        pairs = list(zip(rows.tolist(), passages, strict=True))
        texts = [passage for row, passage in pairs if row not in sample]
        encoded: Iterator[_Float16] = iter(())
        if texts:
            values, lengths = self._encode(texts)
            encoded = iter(np.split(values, np.cumsum(lengths)[:-1]))
        return [sample[row] if row in sample else next(encoded) for row, _ in pairs]

    def _lengths(self, shard: Shard) -> NDArray[np.uint16]:
        """Number of tokens (n,) of each passage of a finished shard."""
        path = self.directory / shard_files(shard.number)[2]
        return load_npy(path, dtype=np.uint16, shape=(len(shard.rows),))

    def list_passages(self, centroids: int) -> int:
        """Write the inverted lists; returns their total length. Reads the codes twice, shard by
        shard.
        """
        total = len(self.passages)

        def pairs(shard: Shard) -> Int64:
            """Distinct (centroid, passage), sorted, as one number each."""
            owners = np.repeat(np.array(shard.rows), self._lengths(shard))
            codes = self._load(shard_files(shard.number)[0])
            return np.unique(codes.astype(np.int64) * total + owners)

        sizes = np.zeros(centroids, np.int64)
        for shard in self._shards:
            sizes += np.bincount(pairs(shard) // total, minlength=centroids)
        ends = np.cumsum(sizes)
        entries = int(ends[-1])
        filled = ends - sizes
        with atomic_path(self.directory / LISTS_NAME) as temporary:
            lists = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.uint32), (entries,))
            for shard in self._shards:
                shard_pairs = pairs(shard)
                shard_sizes = np.bincount(shard_pairs // total, minlength=centroids)
                # A shard's pairs of a centroid lie together, and go behind those of earlier shards.
                lists[ranges(filled, shard_sizes)] = shard_pairs % total
                filled += shard_sizes
            lists.flush()
        save_npy(self.directory / ENDS_NAME, ends)
        return entries
