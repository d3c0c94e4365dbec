"""Take vectors of unchanged passages from an earlier index, so that only new or changed ones are encoded.

A corpus that grows, shrinks or is corrected is indexed again, into a new directory, with the `encode` of
`KnownVectors`: a passage whose title and text are in an earlier index of the same encoder gets its
vector from there. Ids do not matter, nor the order. FAISS and Lucene are built anew, in minutes where
encoding takes hours, and a server can then switch to the new index while it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexers.embedding_shards import EmbeddingShards
from indexers.embeddings import encode_unknown
from indexers.index import Index
from indexers.ledger import BuildLedger, finished_stages
from indexers.passages import PassageStore
from indexers.protocols import EncodesCorpus, PassageEncoder
from indexers.settings import VectorDtype
from rag.core.arrays import Bool, Float32, Int64
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import atomic_path, check_target, fingerprint
from rag.core.manifest import verify_files
from rag.core.progress import Progress
from rag.core.types import Passage

_CHECKED_PASSAGES, _PASSAGES_AT_ONCE = 16, 4096
_FARTHEST = 0.1  # of a vector's length: float16 and bf16 stay below it, another encoder does not
# Fields that may differ while passages get equal vectors.
_QUESTION_SIDE = ("weights_sha256", "name", "query_prefix")
_KEY = np.dtype([("high", "<u8"), ("low", "<u8")])


class KnownVectors:
    """Vectors of the passages of earlier indexes, by hash of title and text.

    Args:
        indexes: earlier indexes with dense retrieval; a vector comes from the first one that holds the
            passage. Their checksums are verified.
        encoder: gives passages the vectors that these indexes hold.
        dtype: type of the numbers to be stored: vectors rounded to float16 are not used for float32.

    Attributes:
        reused: number of passages so far whose vector came from an earlier index.

    Raises:
        ArtifactError: an index is unfinished or damaged.
        ConfigError: an index has no vectors, or less precise ones than `dtype`.
        MismatchedArtifactError: an index was made by an encoder that gives passages other vectors.

    Memory: 24 bytes for each passage of the earlier indexes.
    """

    def __init__(
        self, encoder: PassageEncoder, indexes: Sequence[str | Path], dtype: VectorDtype = "float16"
    ) -> None:
        self.dim, self.reused = encoder.dim, 0
        self._known = [_read_keys(Path(path), encoder, dtype) for path in indexes]

    def find(self, passages: Sequence[Passage]) -> tuple[Float32, Bool]:
        """Vectors (n, D) of passages, and which of them are known (n,)."""
        vectors, is_known = np.empty((len(passages), self.dim), np.float32), np.zeros(len(passages), bool)
        keys = _keys(passages)
        for embeddings, ordered, rows in self._known:
            places = np.searchsorted(ordered["high"], keys["high"])
            places[places == len(ordered)] = 0
            is_new = (ordered[places] == keys) & ~is_known
            vectors[is_new] = embeddings.rows(rows[places[is_new]])
            is_known |= is_new
        self.reused += int(is_known.sum())
        return vectors, is_known

    @property
    def encode(self) -> EncodesCorpus:
        """Encodes a corpus, but for passages that are known; see `encode_corpus`."""

        def encode(place: Path, passages: PassageStore, *args: Any, **options: Any) -> EmbeddingShards:
            def find_known(start: int, stop: int) -> tuple[Float32, Bool]:
                batches = passages.batches(_PASSAGES_AT_ONCE, start=start, stop=stop)
                return self.find(list(chain.from_iterable(batches)))

            return encode_unknown(find_known, place, passages, *args, **options)

        return encode


def _read_keys(
    place: Path, encoder: PassageEncoder, dtype: VectorDtype
) -> tuple[EmbeddingShards, NDArray[np.void], Int64]:
    """The vectors of an index, its passages' keys in order, and the row of each key."""
    with Index.open(place, verify="none") as index:
        embeddings, passages = index.embeddings, index.passages
        files = index.manifest["files"]
    if embeddings is None:
        raise ConfigError(
            f"{place} has no vectors to reuse", hint="give an index with dense or hybrid retrieval"
        )
    needed = {name: files[name] for name in files if name.startswith(("passages/", "embeddings/"))}
    verify_files(index.data, needed, deep=True)
    if dtype == "float32" and embeddings.dtype != "float32":
        raise ConfigError(
            f"{place} holds vectors rounded to {embeddings.dtype}, the new index stores float32",
            hint="build it with --index-type SQfp16, or without --reuse",
        )
    _check_encoder(place, passages, embeddings, encoder)
    parts = []
    with Progress(len(passages), "passages", f"read {place}") as progress:
        for batch in passages.batches(_PASSAGES_AT_ONCE):
            parts.append(_keys(batch))
            progress.update(len(batch))
    keys = np.concatenate(parts)
    order = np.argsort(keys["high"], kind="stable")
    return embeddings, keys[order], order


def _keys(passages: Sequence[Passage]) -> NDArray[np.void]:
    """Hashes (n,) of 128 bits of the passages' titles and texts."""
    digests = []
    for passage in passages:
        head = passage.title.encode()
        content = len(head).to_bytes(8, "little") + head + passage.text.encode()
        digests.append(hashlib.blake2b(content, digest_size=16).digest())
    return np.frombuffer(b"".join(digests), dtype=_KEY)


def _check_encoder(
    place: Path, passages: PassageStore, embeddings: EmbeddingShards, encoder: PassageEncoder
) -> None:
    stored, wanted = embeddings.encoder, encoder.identity
    differences = stored.differences(wanted)
    if odd := [line for line in differences if not line.startswith(_QUESTION_SIDE)]:
        raise MismatchedArtifactError(
            f"{place} holds vectors of {stored.name!r}, not of {wanted.name!r} ({'; '.join(odd)})",
            hint="use the encoder and the settings of that index",
        )
    if differences:
        check_passage_vectors(place, passages, embeddings, encoder)


def check_passage_vectors(
    place: Path,
    passages: PassageStore,
    embeddings: EmbeddingShards,
    encoder: PassageEncoder,
    *,
    seed: int = 0,
) -> None:
    """Refuse an encoder that gives passages other vectors than the index holds, tested on a sample.

    Raises:
        MismatchedArtifactError: the vectors differ; the message states by how much.
    """
    count = min(_CHECKED_PASSAGES, len(passages))
    rows = np.sort(np.random.default_rng(seed).choice(len(passages), count, replace=False))
    stored = embeddings.rows(rows)
    sample = passages.get_many(rows)
    computed = encoder.encode_passages([p.title for p in sample], [p.text for p in sample])
    if computed.shape != stored.shape:
        raise MismatchedArtifactError(
            f"the vectors in {place} have {stored.shape[1]} dimensions, those of {encoder.identity.name} "
            f"have {computed.shape[1]}"
        )
    apart = np.linalg.norm(computed - stored, axis=1) / np.maximum(np.linalg.norm(stored, axis=1), 1e-30)
    if apart.max() > _FARTHEST:
        raise MismatchedArtifactError(
            f"{encoder.identity.name} gives passages of {place} other vectors ({apart.max():.0%} apart)",
            hint=f"name the encoder that it was made with, {embeddings.encoder.name}, or build it again",
        )


def reissue_index(source: str | Path, out: str | Path, encoder: PassageEncoder, *, seed: int = 0) -> Path:
    """Write an index with the vectors of `source` that states `encoder`, whose question side was trained on.

    Args:
        out: new directory; it shares the files with `source` where the file system allows it.
        encoder: its passage tower must be the one `source` was built with; a sample of passages is encoded
            as a check.

    Raises:
        ConfigError: `source` has no vectors, or `out` exists.
        MismatchedArtifactError: the encoder gives passages other vectors.
    """
    target = Path(out)
    check_target(target, folder=True, is_new=True)
    with Index.open(source) as index, atomic_path(target) as temporary:
        check_passage_vectors(
            index.directory, index.passages, index.require_dense().embeddings, encoder, seed=seed
        )
        stages = finished_stages(index.directory, index.manifest)
        embeddings, dense = stages["embeddings"], stages["dense"]
        embeddings["inputs"]["encoder"] = encoder.identity.comparable()
        embeddings["output"]["encoder"] = encoder.identity.to_json()
        dense["inputs"]["embeddings"] = fingerprint(embeddings["inputs"])[:16]
        temporary.mkdir()
        ledger = BuildLedger(temporary)
        ledger.adopt(index.data, stages)
        ledger.commit(list(stages))
    return target
