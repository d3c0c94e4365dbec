"""Build token vectors on disk: encode, compress and list by centroid, shard by shard.

Files in the directory: `centroids.npy`, `buckets.npy`, for each shard of passages
`codes-00000.npy`, `residuals-00000.npy` and, written last, `lengths-00000.npy`; `lists.npy` (the
passages of every centroid, end to end) with `list_ends.npy`. During the build also `sample.npy` and
`sample_rows.npy` (row, tokens): passages that were encoded for the centroids.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity
from indexers.settings import SHARD_ROWS
from indexers.token_codec import BITS, TRAINING_TOKENS, TokenCodec, centroid_count, train_codec
from rag.core.arrays import Int64, load_npy, ranges, save_npy
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path, clean_directory
from rag.core.log import Progress

CENTROIDS_NAME, BUCKETS_NAME = "centroids.npy", "buckets.npy"
LISTS_NAME, ENDS_NAME = "lists.npy", "list_ends.npy"
_SAMPLE_NAME, _SAMPLE_ROWS_NAME = "sample.npy", "sample_rows.npy"
_TEXTS_AT_ONCE = 1024  # passages whose token vectors are in memory together
_SAMPLED_TOKENS = 1 << 16  # at least, if the corpus has as many
_log = logging.getLogger(__name__)


class TokenEncoder(Protocol):
    """Turns passages into one vector per token."""

    @property
    def identity(self) -> EncoderIdentity:
        """The identity of the encoder."""

    def passage_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        """Vectors of passages, in order: `values` (T, D) float32, all concatenated, and `lengths`
        (n,), the number of each; None: one each. Equal calls give equal bytes.
        """


def shard_files(shard: int) -> tuple[str, str, str]:
    """Names of a shard's codes, residuals and lengths; the last of them says that it is finished.

    Example:
        >>> shard_files(3)[0]
        'codes-00003.npy'
    """
    return (f"codes-{shard:05d}.npy", f"residuals-{shard:05d}.npy", f"lengths-{shard:05d}.npy")


def build_tokens(
    passages: PassageStore,
    directory: Path,
    encoder: TokenEncoder,
    *,
    shard_rows: int = SHARD_ROWS,
    seed: int = 0,
) -> dict[str, Any]:
    """Encode, compress and list; finished shards of an interrupted build are kept.

    A random sample of passages is encoded first, for centroids and buckets: 32 tokens for each
    centroid. Its vectors are kept for their shards. All are rounded to half precision before they
    are compressed.

    Args:
        shard_rows: passages per shard, the most a killed run can lose.
        seed: random seed of the sample and the centroids.

    Returns:
        What the manifest says of them, with which `TokenIndex.open` opens them.

    Raises:
        ConfigError: the encoder makes one vector per text, or vectors that are not of unit length.
        DataError: a vector is not finite, or a passage has none.
    """
    if not encoder.identity.normalize:
        raise ConfigError(
            f"{encoder.identity.name} makes token vectors of any length (normalize: false), an index of "
            "tokens keeps only their directions",
            hint="give a ColBERT model whose vectors have unit length: train it without normalize=false",
        )
    clean_directory(directory)
    build = _Build(passages, directory, encoder, shard_rows)
    codec = build.codec(seed)
    sampled = build.sampled()
    missing = [n for n in range(build.shards) if not (directory / shard_files(n)[-1]).is_file()]
    rows = sum(stop - start for start, stop in map(build.range_of, missing))
    with Progress(len(passages), "passages", "encode", initial=len(passages) - rows) as progress:
        for shard in missing:
            build.write(shard, codec, sampled, progress.update)
    entries = build.list_passages(codec)
    for name in (_SAMPLE_ROWS_NAME, _SAMPLE_NAME):
        (directory / name).unlink(missing_ok=True)
    shard_tokens = [int(build.lengths(shard).sum()) for shard in range(build.shards)]
    return {
        "index_type": "plaid",
        "rows": len(passages),
        "tokens": sum(shard_tokens),
        "dim": codec.centroids.shape[1],
        "bits": BITS,
        "centroids": len(codec.centroids),
        "list_entries": entries,
        "shard_rows": shard_rows,
        "seed": seed,
        "shard_tokens": shard_tokens,
    }


@dataclass(frozen=True, slots=True)
class _Build:
    passages: PassageStore
    directory: Path
    encoder: TokenEncoder
    shard_rows: int

    @property
    def shards(self) -> int:
        return -(-len(self.passages) // self.shard_rows)

    def range_of(self, shard: int) -> tuple[int, int]:
        return shard * self.shard_rows, min((shard + 1) * self.shard_rows, len(self.passages))

    def _load(self, name: str) -> np.ndarray:
        return np.asarray(np.load(self.directory / name, mmap_mode="r", allow_pickle=False))

    def _encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        vectors = self.encoder.passage_tokens([p.title for p in texts], [p.text for p in texts])
        if vectors.lengths is None:
            raise ConfigError(
                f"{self.encoder.identity.name} makes one vector per text, a token index needs one per token",
                hint="give a ColBERT model, or another --index-type",
            )
        values, lengths = np.asarray(vectors.values, dtype=np.float16), np.asarray(vectors.lengths)
        if not np.isfinite(values).all():
            raise DataError("a token vector is not finite", hint="check the encoder's weights")
        if not lengths.all():
            empty = texts[int(np.flatnonzero(lengths == 0)[0])]
            raise DataError(
                f"passage {empty.id!r} has no token that counts", hint="leave it out of the corpus"
            )
        return values, lengths

    def codec(self, seed: int) -> TokenCodec:
        """The stored codec, or a new one trained on a sample."""
        names = (CENTROIDS_NAME, BUCKETS_NAME)
        if all((self.directory / name).is_file() for name in names):
            centroids, buckets = map(self._load, names)
            return TokenCodec(centroids.astype(np.float32), buckets)
        draw = np.random.default_rng(seed)
        order = draw.permutation(len(self.passages))
        if not (self.directory / _SAMPLE_ROWS_NAME).is_file():
            self._draw_sample(order)
        values, count = self._load(_SAMPLE_NAME), len(self._load(_SAMPLE_ROWS_NAME))
        tokens = len(values) / count * len(self.passages)  # of the corpus
        _log.info(
            "%s: %d tokens of %d passages train the centroids", self.directory, len(values), count
        )
        sample = values[draw.permutation(len(values))].astype(np.float32)
        codec = train_codec(sample, centroid_count(tokens))
        save_npy(self.directory / CENTROIDS_NAME, codec.centroids.astype(np.float16))
        save_npy(self.directory / BUCKETS_NAME, codec.buckets)
        return codec

    def _draw_sample(self, order: Int64) -> None:
        """Encode the first passages of `order`, as many as the centroids need."""
        parts, counts = list[np.ndarray](), list[np.ndarray]()
        tokens, at, needed = 0, 0, float(_SAMPLED_TOKENS)
        with Progress(None, "tokens", "sample") as progress:
            while at < len(order) and tokens < needed:
                rows = np.sort(order[at : at + _TEXTS_AT_ONCE])
                values, lengths = self._encode(self.passages.get_many(rows))
                parts.append(values)
                counts.append(np.stack([rows, lengths], 1))
                at, tokens = at + len(rows), tokens + len(values)
                in_all = (
                    tokens / at * len(self.passages)
                )  # tokens of the corpus, by the mean so far
                needed = max(float(_SAMPLED_TOKENS), 1.1 * TRAINING_TOKENS * centroid_count(in_all))
                progress.update(len(values))
        save_npy(self.directory / _SAMPLE_NAME, np.concatenate(parts))
        save_npy(self.directory / _SAMPLE_ROWS_NAME, np.concatenate(counts))

    def sampled(self) -> dict[int, np.ndarray]:
        """Vectors of the sample's passages by row, mapped."""
        if not (self.directory / _SAMPLE_ROWS_NAME).is_file():
            return {}
        rows, lengths = self._load(_SAMPLE_ROWS_NAME).T
        parts = np.split(self._load(_SAMPLE_NAME), np.cumsum(lengths)[:-1])
        return dict(zip(rows.tolist(), parts, strict=True))

    def write(
        self,
        shard: int,
        codec: TokenCodec,
        sampled: dict[int, np.ndarray],
        done: Callable[[int], None],
    ) -> None:
        """Write a shard: vectors of the sample as stored, the others encoded."""
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        start, stop = self.range_of(shard)
        for texts in self.passages.batches(_TEXTS_AT_ONCE, start=start, stop=stop):
            rows = range(start, start + len(texts))
            new = [text for row, text in zip(rows, texts, strict=True) if row not in sampled]
            encoded: Iterator[np.ndarray] = iter(())
            if new:
                vectors, lengths = self._encode(new)
                encoded = iter(np.split(vectors, np.cumsum(lengths)[:-1]))
            tokens = [
                sampled[row] if row in sampled else next(encoded) for row in rows
            ]  # (L, D) each
            codes, residuals = codec.encode(np.concatenate(tokens).astype(np.float32))
            parts.append((codes, residuals, np.array(list(map(len, tokens)), np.uint16)))
            start += len(texts)
            done(len(texts))
        for name, arrays in zip(shard_files(shard), zip(*parts, strict=True), strict=True):
            save_npy(self.directory / name, np.concatenate(arrays))

    def lengths(self, shard: int) -> np.ndarray:
        """Number of tokens (n,) of each passage of a finished shard."""
        start, stop = self.range_of(shard)
        return load_npy(
            self.directory / shard_files(shard)[2], dtype=np.uint16, shape=(stop - start,)
        )

    def list_passages(self, codec: TokenCodec) -> int:
        """Write the inverted lists; returns their total length. Reads the codes twice, shard by
        shard.
        """
        count, total = len(codec.centroids), len(self.passages)

        def pairs(shard: int) -> np.ndarray:
            """Distinct (centroid, passage), sorted, as one number each."""
            owners = np.repeat(np.arange(*self.range_of(shard)), self.lengths(shard))
            return np.unique(self._load(shard_files(shard)[0]).astype(np.int64) * total + owners)

        sizes = np.zeros(count, np.int64)
        for shard in range(self.shards):
            sizes += np.bincount(pairs(shard) // total, minlength=count)
        ends = np.cumsum(sizes)
        filled, entries = ends - sizes, int(ends[-1])
        with atomic_path(self.directory / LISTS_NAME) as temporary:
            lists = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.uint32), (entries,))
            for shard in range(self.shards):
                own = pairs(shard)
                each = np.bincount(own // total, minlength=count)
                # A shard's pairs of one centroid lie together, and go behind those of earlier
                # shards.
                lists[ranges(filled, each)] = own % total
                filled += each
            lists.flush()
        save_npy(self.directory / ENDS_NAME, ends)
        return entries
