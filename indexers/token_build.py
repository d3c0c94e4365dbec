"""Build token vectors on disk: encode, compress and list by centroid, shard by shard.

Files in the directory: `centroids.npy`, `buckets.npy`, for each shard of passages `codes-00000.npy`,
`residuals-00000.npy`, `lengths-00000.npy` and, written last, `shard-00000.json` with their checksums;
`lists.npy` (the passages of every centroid, end to end) with `list_ends.npy`; `tokens.json`, the last of all.
During the build also `sample.npy` and `sample_rows.npy` (row, tokens): passages that were encoded for the
centroids.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity
from indexers.settings import SHARD_ROWS
from indexers.token_codec import TRAINING_TOKENS, TokenCodec, centroid_count, train_codec
from rag.core.arrays import Float16, Int64
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path, atomic_write_json, clean_directory, read_json, sha256_file
from rag.core.npy import load_npy, save_npy
from rag.core.progress import Progress
from rag.core.ragged import ranges

TOKENS_NAME, CENTROIDS_NAME, BUCKETS_NAME = "tokens.json", "centroids.npy", "buckets.npy"
LISTS_NAME, ENDS_NAME = "lists.npy", "list_ends.npy"
_SAMPLE_NAME, _SAMPLE_ROWS_NAME = "sample.npy", "sample_rows.npy"
_TEXTS_AT_ONCE = 1024  # passages whose token vectors are in memory together
_SAMPLED_TOKENS = 1 << 16  # at least, if the corpus has as many
_log = logging.getLogger(__name__)


class TokenVectors(Protocol):
    """Vectors of n texts, concatenated; as arrays, or anything that NumPy converts to arrays."""

    @property
    def values(self) -> Any:
        """All vectors (T, D) float32."""

    @property
    def lengths(self) -> Any:
        """Number of vectors of each text (n,); None: one each."""


class TokenEncoder(Protocol):
    """Turns passages into one vector per token."""

    @property
    def identity(self) -> EncoderIdentity:
        """The identity of the encoder."""

    def passage_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> TokenVectors:
        """Vectors of passages, in order; equal calls give equal bytes."""


def shard_files(shard: int) -> tuple[str, str, str]:
    """Names of a shard's codes, residuals and lengths.

    Example:
        >>> shard_files(3)[0]
        'codes-00003.npy'
    """
    return (f"codes-{shard:05d}.npy", f"residuals-{shard:05d}.npy", f"lengths-{shard:05d}.npy")


def check_tokens(identity: EncoderIdentity, bits: int) -> None:
    """Check, before anything is encoded, that token vectors can be compressed.

    Raises:
        ConfigError: the encoder's vectors are not of unit length, or `bits` is not 1, 2 or 4.
    """
    if bits not in (1, 2, 4):
        raise ConfigError(f"{bits} bits per number, expected 1, 2 or 4")
    if not identity.normalize:
        raise ConfigError(
            f"{identity.name} makes token vectors of any length (normalize: false), an index of tokens keeps "
            "only their directions",
            hint="give a ColBERT model whose vectors have unit length: train it without normalize=false",
        )


def build_tokens(
    passages: PassageStore,
    directory: Path,
    encoder: TokenEncoder,
    *,
    bits: int = 2,
    shard_rows: int = SHARD_ROWS,
    seed: int = 0,
) -> dict[str, Any]:
    """Encode, compress and list; finished shards of an interrupted build are kept.

    A random sample of passages is encoded first, for centroids and buckets: 32 tokens for each centroid. Its
    vectors are kept for their shards. All are rounded to half precision before they are compressed.

    Args:
        bits: bits for the residual of each number: 1, 2 or 4.
        shard_rows: passages per shard, the most a killed run can lose.
        seed: random seed of the sample and the centroids.

    Returns:
        The content of `tokens.json`.

    Raises:
        ConfigError: the encoder makes one vector per text, or `check_tokens` refuses it.
        DataError: a vector is not finite, or a passage has none.
    """
    check_tokens(encoder.identity, bits)
    clean_directory(directory)
    made = _Build(passages, directory, encoder, shard_rows)
    codec = made.codec(bits, seed)
    sampled = made.sampled()
    finished = [made.finished(shard) for shard in range(made.shards)]
    with Progress(
        len(passages), "passages", "encode", initial=sum(s["rows"] for s in finished if s)
    ) as progress:
        for shard, known in enumerate(finished):
            if known is None:
                made.write(shard, codec, sampled, progress.update)
    counts = [read_json(directory / f"shard-{shard:05d}.json") for shard in range(made.shards)]
    entries = made.list_passages(codec, [count["tokens"] for count in counts])
    info = {
        "index_type": "plaid",
        "rows": len(passages),
        "tokens": sum(count["tokens"] for count in counts),
        "dim": codec.centroids.shape[1],
        "bits": codec.bits,
        "centroids": len(codec.centroids),
        "list_entries": entries,
        "shard_rows": shard_rows,
        "seed": seed,
        "shard_tokens": [count["tokens"] for count in counts],
        "encoder": encoder.identity.to_json(),
    }
    atomic_write_json(directory / TOKENS_NAME, info)
    for name in (_SAMPLE_ROWS_NAME, _SAMPLE_NAME):
        (directory / name).unlink(missing_ok=True)
    return info


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

    def _encode(self, texts: Sequence[Any]) -> tuple[Float16, np.ndarray]:
        found = self.encoder.passage_tokens([p.title for p in texts], [p.text for p in texts])
        if found.lengths is None:
            raise ConfigError(
                f"{self.encoder.identity.name} makes one vector per text, a token index needs one per token",
                hint="give a ColBERT model, or another --index-type",
            )
        values, lengths = np.asarray(found.values, dtype=np.float16), np.asarray(found.lengths)
        if not np.isfinite(values).all():
            raise DataError("a token vector is not finite", hint="check the encoder's weights")
        if not lengths.all():
            empty = texts[int(np.flatnonzero(lengths == 0)[0])]
            raise DataError(
                f"passage {empty.id!r} has no token that counts", hint="leave it out of the corpus"
            )
        return values, lengths

    def codec(self, bits: int, seed: int) -> TokenCodec:
        """The stored codec, or a new one trained on a sample."""
        names = (CENTROIDS_NAME, BUCKETS_NAME)
        if all((self.directory / name).is_file() for name in names):
            centroids, buckets = (np.load(self.directory / name, allow_pickle=False) for name in names)
            return TokenCodec(centroids.astype(np.float32), buckets)
        draw = np.random.default_rng(seed)
        order = draw.permutation(len(self.passages))
        if not (self.directory / _SAMPLE_ROWS_NAME).is_file():
            self._draw_sample(order)
        values = np.load(self.directory / _SAMPLE_NAME, allow_pickle=False)
        taken = len(np.load(self.directory / _SAMPLE_ROWS_NAME, allow_pickle=False))
        in_all = len(values) / taken * len(self.passages)
        _log.info("%s: %d tokens of %d passages train the centroids", self.directory, len(values), taken)
        sample = values[draw.permutation(len(values))].astype(np.float32)
        codec = train_codec(sample, centroid_count(in_all), bits)
        save_npy(self.directory / CENTROIDS_NAME, codec.centroids.astype(np.float16))
        save_npy(self.directory / BUCKETS_NAME, codec.buckets)
        return codec

    def _draw_sample(self, order: Int64) -> None:
        """Encode the first passages of `order`, as many as the centroids need."""
        parts: list[Float16] = []
        counts: list[np.ndarray] = []
        tokens, at, wanted = 0, 0, float(_SAMPLED_TOKENS)
        with Progress(None, "tokens", "sample") as progress:
            while at < len(order) and tokens < wanted:
                rows = np.sort(order[at : at + _TEXTS_AT_ONCE])
                values, lengths = self._encode(self.passages.get_many(rows))
                parts.append(values)
                counts.append(np.stack([rows, lengths], 1))
                at, tokens = at + len(rows), tokens + len(values)
                in_all = tokens / at * len(self.passages)  # tokens of the corpus, by the mean so far
                wanted = max(float(_SAMPLED_TOKENS), 1.1 * TRAINING_TOKENS * centroid_count(in_all))
                progress.update(len(values))
        save_npy(self.directory / _SAMPLE_NAME, np.concatenate(parts))
        save_npy(self.directory / _SAMPLE_ROWS_NAME, np.concatenate(counts))

    def sampled(self) -> dict[int, Float16]:
        """Vectors of the sample's passages by row, mapped."""
        if not (self.directory / _SAMPLE_ROWS_NAME).is_file():
            return {}
        rows, lengths = np.load(self.directory / _SAMPLE_ROWS_NAME, allow_pickle=False).T
        values = np.load(self.directory / _SAMPLE_NAME, mmap_mode="r", allow_pickle=False)
        ends = np.cumsum(lengths)
        places = zip(rows.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True)
        return {row: values[start:end] for row, start, end in places}

    def finished(self, shard: int) -> dict[str, Any] | None:
        """Description of a finished shard; None if it is missing, or a checksum differs."""
        path = self.directory / f"shard-{shard:05d}.json"
        if not path.is_file():
            return None
        info: dict[str, Any] = read_json(path)
        for name, sha256 in info["sha256"].items():
            file = self.directory / name
            if not file.is_file() or sha256_file(file) != sha256:
                _log.warning("%s does not match its checksum, shard %d is encoded again", file, shard)
                return None
        return info

    def write(
        self, shard: int, codec: TokenCodec, sampled: dict[int, Float16], done: Callable[[int], None]
    ) -> None:
        codes, residuals, lengths = [], [], []
        start, stop = self.range_of(shard)
        row = start
        for texts in self.passages.batches(_TEXTS_AT_ONCE, start=start, stop=stop):
            known = [sampled.get(number) for number in range(row, row + len(texts))]
            parts = self._filled(texts, known)
            code, residual = codec.encode(np.concatenate(parts).astype(np.float32))
            codes.append(code)
            residuals.append(residual)
            lengths.append(np.array([len(part) for part in parts], np.uint16))
            row += len(texts)
            done(len(texts))
        arrays = map(np.concatenate, (codes, residuals, lengths))
        sha256 = {
            name: save_npy(self.directory / name, array)
            for name, array in zip(shard_files(shard), arrays, strict=True)
        }
        tokens = sum(map(len, codes))
        info = {"rows": stop - start, "tokens": tokens, "sha256": sha256}
        atomic_write_json(self.directory / f"shard-{shard:05d}.json", info)

    def _filled(self, texts: Sequence[Any], known: Sequence[Float16 | None]) -> list[Float16]:
        """Vectors of each passage: those of the sample as stored, the others encoded."""
        missing = [text for text, found in zip(texts, known, strict=True) if found is None]
        if not missing:
            return [found for found in known if found is not None]
        values, lengths = self._encode(missing)
        new = iter(np.split(values, np.cumsum(lengths)[:-1]))
        return [next(new) if found is None else found for found in known]

    def list_passages(self, codec: TokenCodec, tokens: Sequence[int]) -> int:
        """Write the inverted lists; returns their total length. Reads the codes twice, shard by shard."""
        count = len(codec.centroids)

        def pairs(shard: int) -> np.ndarray:
            """Distinct (centroid, passage), sorted, as one number each."""
            start, stop = self.range_of(shard)
            names = shard_files(shard)
            codes = np.load(self.directory / names[0], mmap_mode="r", allow_pickle=False)
            lengths = load_npy(self.directory / names[2], dtype=np.uint16, shape=(stop - start,))
            owners = np.repeat(np.arange(start, stop), lengths)
            return np.unique(codes.astype(np.int64) * len(self.passages) + owners)

        sizes = np.zeros(count, np.int64)
        for shard in range(len(tokens)):
            sizes += np.bincount(pairs(shard) // len(self.passages), minlength=count)
        ends = np.cumsum(sizes)
        filled, entries = ends - sizes, int(ends[-1])
        with atomic_path(self.directory / LISTS_NAME) as temporary:
            lists = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.uint32), (entries,))
            for shard in range(len(tokens)):
                found = pairs(shard)
                owners = found // len(self.passages)
                each = np.bincount(owners, minlength=count)
                # A shard's pairs of one centroid lie together, and go behind those of earlier shards.
                lists[ranges(filled, each)] = found % len(self.passages)
                filled += each
            lists.flush()
        save_npy(self.directory / ENDS_NAME, ends)
        return entries
