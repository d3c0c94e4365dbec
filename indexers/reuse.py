"""Check that the vectors of an index may be taken over into another index."""

from __future__ import annotations

import numpy as np

from indexers.embeddings import EmbeddingShards, encode_passages
from indexers.index import Index
from indexers.protocols import PassageEncoder
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, MismatchedArtifactError

_CHECKED_PASSAGES = 16
# Share of a vector's length: float16 and bf16 stay below it, another encoder does not.
_FARTHEST = 0.1
# Fields of an encoder's identity that may differ while passages get equal vectors.
_QUESTION_SIDE = ("weights_sha256", "name", "query_prefix")


def check_vectors(
    start: Index, encoder: PassageEncoder, settings: BuildSettings, *, with_passages: bool
) -> None:
    """Refuse vectors that are less precise than those to be stored, or of another passage encoder.

    An encoder whose question side alone differs is accepted if a sample of the passages gets equal
    vectors.

    Args:
        with_passages: the passages stay, too: their sample tells whether the tokenizer of questions
            alone changed.

    Raises:
        ConfigError: `start` has no vectors, or less precise ones.
        MismatchedArtifactError: the vectors are of another encoder.
    """
    part = start.require_dense()
    embeddings = part.embeddings
    if settings.stored_dtype == "float32" and embeddings.dtype != "float32":
        raise ConfigError(
            f"{start.directory} holds vectors rounded to {embeddings.dtype}, the new index stores "
            "float32",
            hint="give {index_type} SQfp16, or leave {reuse} out",
            arguments=("index_type", "reuse"),
        )
    stored = part.encoder
    may_differ = (*_QUESTION_SIDE, "tokenizer_sha256") if with_passages else _QUESTION_SIDE
    differences = stored.differences(encoder.identity)
    if any(not line.startswith(may_differ) for line in differences):
        stored.check(start.directory, encoder.identity)
    if differences:
        _check_sample(start, embeddings, encoder, settings.seed)


def _check_sample(
    start: Index, embeddings: EmbeddingShards, encoder: PassageEncoder, seed: int
) -> None:
    """Refuse an encoder that gives a sample of the passages other vectors than are stored."""
    count = min(_CHECKED_PASSAGES, len(start.passages))
    draw = np.random.default_rng(seed)
    rows = np.sort(draw.choice(len(start.passages), count, replace=False))
    stored = embeddings.rows(rows)
    computed = encode_passages(encoder, start.passages.get_many(rows))
    lengths = np.maximum(np.linalg.norm(stored, axis=1), 1e-30)
    farthest = (np.linalg.norm(computed - stored, axis=1) / lengths).max()
    if farthest > _FARTHEST:
        raise MismatchedArtifactError(
            f"{encoder.identity.name} gives passages of {start.directory} other vectors "
            f"({farthest:.0%} apart)",
            hint=f"name the encoder that it was made with, {start.require_dense().encoder.name}, "
            "or build it again",
        )
