"""Take vectors of a finished index into the build of another corpus, or under a newer question
side.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from indexers.embeddings import EmbeddingShards, StoredVectors
from indexers.index import Index
from indexers.ledger import BuildLedger, finished_stages, verify_files
from indexers.passages import PassageStore
from indexers.protocols import PassageEncoder
from indexers.settings import VectorDtype
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import atomic_path, check_target, fingerprint

_CHECKED_PASSAGES = 16
_FARTHEST = 0.1  # of a vector's length: float16 and bf16 stay below it, another encoder does not
# Fields that may differ while passages get equal vectors.
_QUESTION_SIDE = ("weights_sha256", "name", "query_prefix")


def open_stored(
    encoder: PassageEncoder, source: str | Path, dtype: VectorDtype = "float16"
) -> StoredVectors:
    """The vectors of a finished index with dense retrieval, whose checksums are verified.

    Args:
        encoder: gives passages the vectors that this index holds.
        dtype: type of the numbers to be stored: vectors rounded to float16 are not used for
            float32.

    Raises:
        ArtifactError: the index is unfinished or damaged.
        ConfigError: the index has no vectors, or less precise ones than `dtype`.
        MismatchedArtifactError: the index was made by an encoder that gives passages other vectors.
    """
    place = Path(source)
    with Index.open(place, verify="none") as index:
        passages, embeddings = index.passages, index.require_dense().embeddings
    files = index.manifest["files"].items()
    verify_files(
        index.data, {n: entry for n, entry in files if n.startswith(("passages/", "embeddings/"))}
    )
    if dtype == "float32" and embeddings.dtype != "float32":
        raise ConfigError(
            f"{place} holds vectors rounded to {embeddings.dtype}, the new index stores float32",
            hint="build it with --index-type SQfp16, or without --reuse",
        )
    differences = embeddings.encoder.differences(encoder.identity)
    if any(not line.startswith(_QUESTION_SIDE) for line in differences):
        embeddings.encoder.check(place, encoder.identity)
    if differences:
        check_passage_vectors(place, passages, embeddings, encoder)
    return StoredVectors(passages, embeddings)


def check_passage_vectors(
    place: Path,
    passages: PassageStore,
    embeddings: EmbeddingShards,
    encoder: PassageEncoder,
    seed: int = 0,
) -> None:
    """Refuse an encoder that gives passages other vectors than the index holds, tested on a
    sample.
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
    apart = np.linalg.norm(computed - stored, axis=1) / np.maximum(
        np.linalg.norm(stored, axis=1), 1e-30
    )
    if apart.max() > _FARTHEST:
        raise MismatchedArtifactError(
            f"{encoder.identity.name} gives passages of {place} other vectors ({apart.max():.0%} apart)",
            hint=f"name the encoder that it was made with, {embeddings.encoder.name}, or build it again",
        )


def reissue_index(
    source: str | Path, out: str | Path, encoder: PassageEncoder, *, seed: int = 0
) -> Path:
    """Write an index with the vectors of `source` that states `encoder`, whose question side was
    trained on.

    Args:
        out: new directory; it shares the files with `source` where the file system allows it.
        encoder: its passage tower must be the one `source` was built with; a sample of passages is
            encoded as a check.

    Raises:
        ConfigError: `source` has no vectors, or `out` exists.
        MismatchedArtifactError: the encoder gives passages other vectors.
    """
    target = Path(out)
    check_target(target, folder=True, is_new=True)
    with Index.open(source) as index, atomic_path(target, folder=True) as temporary:
        embeddings = index.require_dense().embeddings
        check_passage_vectors(index.directory, index.passages, embeddings, encoder, seed)
        stages = finished_stages(index.manifest)
        encoded = stages["embeddings"]
        encoded["inputs"]["encoder"] = encoder.identity.comparable()
        encoded["output"]["encoder"] = encoder.identity.to_json()
        stages["dense"]["inputs"]["embeddings"] = fingerprint(encoded["inputs"])[:16]
        ledger = BuildLedger(temporary)
        ledger.adopt(index.data, stages)
        ledger.commit(list(stages))
    return target
