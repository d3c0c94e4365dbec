"""Scores over an index whose vectors are fixed, and a check that a resumed run uses the same index."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.errors import MismatchedArtifactError
from rag.training.fit import FitHooks
from retrievers.training.bi_encoder import BiEncoderModel


def listed_scores(questions: Tensor, vectors: Tensor, places: Tensor, scale: float = 1.0) -> Tensor:
    """(B, K) scaled inner products of each question with the passages of its own list.

    Args:
        questions: (B, D).
        vectors: (U, D) of distinct passages.
        places: (B, K) int64 rows of `vectors`; −1 where a list is shorter, which scores −inf.

    Example:
        >>> listed_scores(torch.eye(2), torch.eye(2), torch.tensor([[1, 0], [1, -1]])).tolist()
        [[0.0, 1.0], [1.0, -inf]]
    """
    places = places.to(vectors.device)
    scores = torch.einsum("bd,bkd->bk", questions, vectors[places.clamp_min(0)]) * scale
    return scores.masked_fill(places < 0, float("-inf"))


def score_rows(model: BiEncoderModel, index: Index, queries: Tensor, rows: Int64) -> Tensor:
    """Scores (B, K), over the temperature, of queries' vectors (B, D) and the vectors in `rows` (B, K) of the
    index; −inf where a row is −1. Differentiable in the queries."""
    distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
    vectors = torch.from_numpy(index.require_dense().embeddings.rows(distinct)).to(queries.device)  # (U, D)
    listed = torch.from_numpy(np.where(rows < 0, -1, places.reshape(rows.shape)))
    return listed_scores(queries, vectors, listed, model.scale)


class FrozenIndex(FitHooks):
    """Hooks that record the index's version in logs and checkpoints."""

    def __init__(self, version: str) -> None:
        self._version = version

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """The index's version; it has no age, since passages are not encoded again."""
        return {"index_version": self._version}

    def extra_state(self) -> Mapping[str, Any]:
        """The index's version."""
        return {"index_version": self._version}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Refuse to resume with another index."""
        if state["index_version"] != self._version:
            raise MismatchedArtifactError(
                f"the run was started against index version {state['index_version']}, this one is "
                f"{self._version}",
                hint="give the same index, or choose another --out",
            )
