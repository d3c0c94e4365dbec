"""Build token vectors on disk: encode, compress and list by centroid, shard by shard.

A new version of an index takes over the codes of passages that it had before, under the centroids
that it had before; see `_keeps_codec` for when all is trained and encoded anew.

Beside the files of `indexers.token_files`, the directory holds during a build: passages that were
encoded for the centroids (`sample.npy`, the vectors, and `sample_rows.npy`: row, tokens); in an
update, new passages on which the earlier centroids are tried (`new_sample…`); and what is known of
new centroids (`training.npy`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexers.matching import match_passages
from indexers.passages import PassageStore
from indexers.protocols import TokenEncoder
from indexers.settings import SHARD_ROWS
from indexers.token_codec import TRAINING_TOKENS, Codes, TokenCodec, centroid_count, train_codec
from indexers.token_files import (
    BUCKETS_NAME,
    CENTROIDS_NAME,
    ENDS_NAME,
    LISTS_NAME,
    TokenInfo,
    TokenShards,
    shard_files,
)
from rag.core.arrays import Bool, Float32, Int64, load_npy, ranges, save_npy
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path, clean_directory, link_or_copy
from rag.core.log import Progress
from rag.core.types import Passage

# An update keeps the centroids while the mean squared distance of vectors to them is at most so
# many times that of the vectors that they were trained for …
MOST_ERROR = 1.1
# … and while the corpus has at most so many times their tokens: a new build of a larger one would
# have twice as many centroids.
MOST_GROWTH = 4
_TEXTS_AT_ONCE = 1024  # passages whose token vectors are in memory together
_SAMPLED_TOKENS = 1 << 16  # at least, if the corpus has as many
_TRAINING_NAME = "training.npy"
_log = logging.getLogger(__name__)
Float16 = NDArray[np.float16]


class StoredTokens:
    """Token vectors of passages in an earlier index, so that only new passages are encoded.

    Attributes:
        shards: the vectors.
        rows: (N,) row of each passage of the corpus in the earlier index, after `locate`; -1 where
            that has no passage with this title and text, or all is encoded anew.
    """

    def __init__(self, passages: PassageStore, shards: TokenShards) -> None:
        self._passages = passages
        self.shards = shards
        self.rows: Int64 = np.empty(0, np.int64)

    def locate(self, passages: PassageStore) -> None:
        """Find the passages of a corpus in the earlier index."""
        self.rows = match_passages(passages, self._passages)


def build_tokens(
    passages: PassageStore,
    directory: Path,
    encoder: TokenEncoder,
    *,
    shard_rows: int = SHARD_ROWS,
    seed: int = 0,
    stored: StoredTokens | None = None,
) -> TokenInfo:
    """Encode, compress and list; finished shards of an interrupted build are kept.

    A random sample of passages is encoded first, for centroids and buckets: 32 tokens for each
    centroid. Its vectors are kept for their shards. All are rounded to half precision before they
    are compressed.

    Args:
        shard_rows: passages per shard, the most a killed run can lose.
        seed: random seed of the sample and the centroids.
        stored: vectors of an earlier version of the index.

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
    if stored is not None:
        stored.locate(passages)
    build = _Build(passages, directory, encoder, shard_rows, seed, stored)
    codec, trained_tokens, trained_error = build.codec()
    build.write_shards(codec)
    list_entries = build.list_passages(codec)
    shard_tokens = [int(build.lengths(shard).sum()) for shard in range(build.shards)]
    error = build.error(codec, sum(shard_tokens), trained_error)
    build.clean_up()
    return TokenInfo(
        rows=len(passages),
        tokens=sum(shard_tokens),
        dim=codec.centroids.shape[1],
        centroids=len(codec.centroids),
        list_entries=list_entries,
        shard_rows=shard_rows,
        seed=seed,
        shard_tokens=shard_tokens,
        trained_tokens=trained_tokens,
        trained_error=trained_error,
        error=error,
    )


class _Sample:
    """Vectors of some passages, encoded before their shards.

    Attributes:
        rows: (n,) the passages.
        lengths: (n,) number of vectors of each.
        values: (T, D) float16, mapped.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._values_path = directory / f"{name}.npy"
        self._rows_path = directory / f"{name}_rows.npy"  # written last
        self.rows = np.empty(0, np.int64)
        self.lengths = np.empty(0, np.int64)
        self.values: Float16 = np.empty((0, 0), np.float16)
        self.load()

    def load(self) -> None:
        if self._rows_path.is_file():
            self.rows, self.lengths = load_npy(self._rows_path, dtype=np.int64).T
            self.values = load_npy(self._values_path, dtype=np.float16)

    def save(self, values: list[Float16], rows: list[Int64]) -> None:
        save_npy(self._values_path, np.concatenate(values))
        save_npy(self._rows_path, np.concatenate(rows))
        self.load()

    def by_row(self) -> dict[int, Float16]:
        """The vectors of each passage, mapped."""
        if not len(self.rows):
            return {}
        parts = np.split(self.values, np.cumsum(self.lengths)[:-1])
        return dict(zip(self.rows.tolist(), parts, strict=True))

    def remove(self) -> None:
        for path in (self._rows_path, self._values_path):
            path.unlink(missing_ok=True)


class _Build:
    """One build in its directory."""

    def __init__(
        self,
        passages: PassageStore,
        directory: Path,
        encoder: TokenEncoder,
        shard_rows: int,
        seed: int,
        stored: StoredTokens | None,
    ) -> None:
        self._passages = passages
        self._directory = directory
        self._encoder = encoder
        self._shard_rows = shard_rows
        self._seed = seed
        self._stored = stored
        self._sample = _Sample(directory, "sample")
        self._new_sample = _Sample(directory, "new_sample")

    @property
    def shards(self) -> int:
        return -(-len(self._passages) // self._shard_rows)

    def _rows_of(self, shard: int) -> range:
        start = shard * self._shard_rows
        return range(start, min(start + self._shard_rows, len(self._passages)))

    def _encode(self, texts: Sequence[Passage]) -> tuple[Float16, Int64]:
        titles = [passage.title for passage in texts]
        vectors = self._encoder.passage_tokens(titles, [passage.text for passage in texts])
        if vectors.lengths is None:
            raise ConfigError(
                f"{self._encoder.identity.name} makes one vector per text, a token index needs one "
                "per token",
                hint="give a ColBERT model, or another --index-type",
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

    def codec(self) -> tuple[TokenCodec, int, float]:
        """The codec, and its `trained_tokens` and `trained_error`: that of the earlier index, the
        one of an interrupted build, or a new one.
        """
        paths = [self._directory / name for name in (_TRAINING_NAME, CENTROIDS_NAME, BUCKETS_NAME)]
        if not all(path.is_file() for path in paths):
            if self._stored is not None and self._keeps_codec(self._stored):
                info = self._stored.shards.info
                return self._stored.shards.codec, info.trained_tokens, info.trained_error
            self._train(paths)
        training, centroids, buckets = (np.load(path, allow_pickle=False) for path in paths)
        if self._stored is not None:
            self._stored.rows[:] = -1
        tokens, error = training.tolist()
        return TokenCodec(centroids.astype(np.float32), buckets), int(tokens), error

    def _train(self, paths: Sequence[Path]) -> None:
        """Train a codec on a sample of all passages, and save it."""
        draw = np.random.default_rng(self._seed)
        order = draw.permutation(len(self._passages))
        self._draw_sample(self._sample, order)
        values = self._sample.values
        count = len(self._sample.rows)
        tokens = len(values) / count * len(self._passages)  # of the corpus
        _log.info(
            "%s: %d tokens of %d passages train the centroids", self._directory, len(values), count
        )
        shuffled = values[draw.permutation(len(values))].astype(np.float32)
        codec, error = train_codec(shuffled, centroid_count(tokens))
        training_path, centroids_path, buckets_path = paths
        save_npy(training_path, np.array([round(tokens), error]))
        save_npy(centroids_path, codec.centroids.astype(np.float16))
        save_npy(buckets_path, codec.buckets)

    def _keeps_codec(self, stored: StoredTokens) -> bool:
        """Whether the vectors stay under the centroids of the earlier index; if so, take these over.

        They do up to `MOST_ERROR` and `MOST_GROWTH`. The error of what is stored is known; that of
        new passages is measured on a sample of them.
        """
        info = stored.shards.info
        new_rows = np.flatnonzero(stored.rows < 0)
        new_tokens = 0.0
        if len(new_rows):
            order = np.random.default_rng(self._seed).permutation(new_rows)
            self._draw_sample(self._new_sample, order)
            per_passage = len(self._new_sample.values) / len(self._new_sample.rows)
            new_tokens = per_passage * len(new_rows)
        tokens = self._stored_tokens(stored) + new_tokens
        error = self.error(stored.shards.codec, tokens, info.trained_error)
        _log.info("%s: error %.4f, %.4f when trained", self._directory, error, info.trained_error)
        if error > MOST_ERROR * info.trained_error or tokens > MOST_GROWTH * info.trained_tokens:
            return False
        for name in (CENTROIDS_NAME, BUCKETS_NAME):
            self._link(stored, name)
        return True

    def _stored_tokens(self, stored: StoredTokens) -> int:
        """Number of the corpus' tokens that are taken over."""
        lengths = stored.shards.lengths()
        return int(lengths[stored.rows[stored.rows >= 0]].sum())

    def error(self, codec: TokenCodec, tokens: float, trained_error: float) -> float:
        """Mean squared distance of the corpus' vectors, `tokens` in number, to their centroids."""
        if self._stored is None or (self._stored.rows < 0).all():
            return trained_error
        share_stored = self._stored_tokens(self._stored) / tokens
        error = share_stored * self._stored.shards.info.error
        if len(self._new_sample.values):
            new_error = codec.error(self._new_sample.values.astype(np.float32))
            error += (1.0 - share_stored) * new_error
        return error

    def _link(self, stored: StoredTokens, name: str) -> None:
        with atomic_path(self._directory / name) as temporary:
            link_or_copy(stored.shards.directory / name, temporary)

    def _draw_sample(self, sample: _Sample, order: Int64) -> None:
        """Encode the first passages of `order`, as many as centroids for all of them need."""
        if len(sample.rows):
            return
        values = list[Float16]()
        rows_and_lengths = list[Int64]()
        passages = 0
        tokens = 0
        needed = float(_SAMPLED_TOKENS)
        with Progress(None, "tokens", "sample") as progress:
            while passages < len(order) and tokens < needed:
                rows = np.sort(order[passages : passages + _TEXTS_AT_ONCE])
                vectors, lengths = self._encode(self._passages.get_many(rows))
                values.append(vectors)
                rows_and_lengths.append(np.stack([rows, lengths], 1))
                passages += len(rows)
                tokens += len(vectors)
                expected = tokens / passages * len(order)  # by the mean so far
                needed = max(
                    float(_SAMPLED_TOKENS), 1.1 * TRAINING_TOKENS * centroid_count(expected)
                )
                progress.update(len(vectors))
        sample.save(values, rows_and_lengths)

    def write_shards(self, codec: TokenCodec) -> None:
        """Write the shards that are missing."""
        encoded = self._new_sample.by_row() | self._sample.by_row()
        missing = []
        for shard in range(self.shards):
            if not (self._directory / shard_files(shard)[-1]).is_file():
                missing.append(shard)
        left = sum(len(self._rows_of(shard)) for shard in missing)
        total = len(self._passages)
        with Progress(total, "passages", "encode", initial=total - left) as progress:
            for shard in missing:
                if self._link_shard(shard):
                    progress.update(len(self._rows_of(shard)))
                else:
                    self._write_shard(shard, codec, encoded, progress.update)

    def _link_shard(self, shard: int) -> bool:
        """Take over whole files, where the rows of a shard are those of a stored one."""
        if self._stored is None:
            return False
        rows = self._rows_of(shard)
        info = self._stored.shards.info
        stored_stop = min(rows.start + info.shard_rows, info.rows)
        is_alike = info.shard_rows == self._shard_rows and stored_stop == rows.stop
        if not (is_alike and np.array_equal(self._stored.rows[rows.start : rows.stop], rows)):
            return False
        for name in shard_files(shard):
            self._link(self._stored, name)
        return True

    def _write_shard(
        self,
        shard: int,
        codec: TokenCodec,
        encoded: dict[int, Float16],
        done: Callable[[int], None],
    ) -> None:
        """Write a shard: tokens that are stored, vectors that are encoded already, and the rest."""
        parts = list[tuple[Codes, NDArray[np.uint8], Int64]]()
        shard_rows = self._rows_of(shard)
        for start in range(shard_rows.start, shard_rows.stop, _TEXTS_AT_ONCE):
            rows = range(start, min(start + _TEXTS_AT_ONCE, shard_rows.stop))
            parts.append(self._block(rows, codec, encoded))
            done(len(rows))
        codes, residuals, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        arrays = (codes, residuals, lengths.astype(np.uint16))
        for name, array in zip(shard_files(shard), arrays, strict=True):
            save_npy(self._directory / name, array)

    def _block(
        self, rows: range, codec: TokenCodec, encoded: dict[int, Float16]
    ) -> tuple[Codes, NDArray[np.uint8], Int64]:
        """Codes, residuals and lengths of some passages."""
        earlier = np.full(len(rows), -1)
        if self._stored is not None:
            earlier = self._stored.rows[rows.start : rows.stop]
        is_new: Bool = earlier < 0
        if is_new.all():
            vectors = self._vectors(rows, is_new, encoded)
            return *codec.encode(_end_to_end(vectors)), _lengths(vectors)
        assert self._stored is not None
        by_earlier_row = np.argsort(earlier, kind="stable")[int(is_new.sum()) :]
        codes, residuals, kept_lengths = self._stored.shards.tokens(earlier[by_earlier_row])
        lengths = np.zeros(len(rows), np.int64)
        lengths[by_earlier_row] = kept_lengths
        parts = [(by_earlier_row, codes, residuals)]
        if is_new.any():
            vectors = self._vectors(rows, is_new, encoded)
            lengths[is_new] = _lengths(vectors)
            parts.append((np.flatnonzero(is_new), *codec.encode(_end_to_end(vectors))))
        starts = np.cumsum(lengths) - lengths
        all_codes = np.empty(lengths.sum(), codes.dtype)
        all_residuals = np.empty((len(all_codes), codec.packed_bytes), np.uint8)
        for places, part_codes, part_residuals in parts:
            tokens = ranges(starts[places], lengths[places])
            all_codes[tokens] = part_codes
            all_residuals[tokens] = part_residuals
        return all_codes, all_residuals, lengths

    def _vectors(self, rows: range, is_new: Bool, encoded: dict[int, Float16]) -> list[Float16]:
        """Vectors (L, D) of each new passage among `rows`; those that lack in `encoded` are made."""
        batches = self._passages.batches(len(rows), start=rows.start, stop=rows.stop)
        new = [
            (row, passage)
            for row, passage, passage_is_new in zip(
                rows, chain.from_iterable(batches), is_new, strict=True
            )
            if passage_is_new
        ]
        texts = [passage for row, passage in new if row not in encoded]
        made = list[Float16]()
        if texts:
            values, lengths = self._encode(texts)
            made = np.split(values, np.cumsum(lengths)[:-1])
        following = iter(made)
        return [encoded[row] if row in encoded else next(following) for row, _ in new]

    def lengths(self, shard: int) -> NDArray[np.uint16]:
        """Number of tokens (n,) of each passage of a finished shard."""
        shape = (len(self._rows_of(shard)),)
        return load_npy(self._directory / shard_files(shard)[2], dtype=np.uint16, shape=shape)

    def list_passages(self, codec: TokenCodec) -> int:
        """Write the inverted lists; returns their total length. Reads the codes twice, shard by
        shard.
        """
        count = len(codec.centroids)
        total = len(self._passages)

        def pairs(shard: int) -> Int64:
            """Distinct (centroid, passage), sorted, as one number each."""
            owners = np.repeat(np.array(self._rows_of(shard)), self.lengths(shard))
            path = self._directory / shard_files(shard)[0]
            codes = np.load(path, mmap_mode="r", allow_pickle=False)
            return np.unique(codes.astype(np.int64) * total + owners)

        sizes = np.zeros(count, np.int64)
        for shard in range(self.shards):
            sizes += np.bincount(pairs(shard) // total, minlength=count)
        ends = np.cumsum(sizes)
        entries = int(ends[-1])
        filled = ends - sizes
        with atomic_path(self._directory / LISTS_NAME) as temporary:
            lists = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.uint32), (entries,))
            for shard in range(self.shards):
                shard_pairs = pairs(shard)
                shard_sizes = np.bincount(shard_pairs // total, minlength=count)
                # A shard's pairs of a centroid lie together, and go behind those of earlier shards.
                lists[ranges(filled, shard_sizes)] = shard_pairs % total
                filled += shard_sizes
            lists.flush()
        save_npy(self._directory / ENDS_NAME, ends)
        return entries

    def clean_up(self) -> None:
        """Remove what only the build needs."""
        self._sample.remove()
        self._new_sample.remove()
        (self._directory / _TRAINING_NAME).unlink(missing_ok=True)


def _end_to_end(vectors: list[Float16]) -> Float32:
    return np.concatenate(vectors).astype(np.float32)


def _lengths(vectors: list[Float16]) -> Int64:
    return np.array([len(passage_vectors) for passage_vectors in vectors], np.int64)
