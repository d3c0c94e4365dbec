"""Figures of a retriever in training: whether its scores tell passages apart, and whether it collapses."""

from __future__ import annotations

import numpy as np

from rag.core.arrays import Float32, Int64


def score_entropy(scores: Float32) -> float:
    """Mean entropy of p(z|q) = softmax(scores) as a share of the largest possible, 0 to 1.

    1 means all retrieved documents are equally likely, 0 that one has all the weight.

    Args:
        scores: (n, K); -inf in empty places.

    Example:
        >>> round(score_entropy(np.zeros((2, 4))), 3), round(score_entropy(np.array([[100.0, 0.0]])), 3)
        (1.0, 0.0)
    """
    from scipy.special import entr, softmax

    counts = np.isfinite(scores).sum(axis=1)
    values = np.where(np.isfinite(scores), scores, -np.inf)[counts > 1].astype(np.float64)  # (m, K)
    if not len(values):
        return 1.0
    entropies = entr(softmax(values, axis=1)).sum(axis=1)
    return float(np.mean(entropies / np.log(counts[counts > 1])))


def distinct_share(rows: Int64, documents: int) -> float:
    """Distinct documents among those retrieved, as a share of what is possible.

    Near 0 the retriever has collapsed: every question gets the same documents.

    Args:
        rows: (n, K); -1 in empty places.

    Example:
        >>> distinct_share(np.array([[0, 1], [0, 1]]), documents=100)
        0.5
    """
    retrieved = rows[rows >= 0]
    return len(np.unique(retrieved)) / min(retrieved.size, documents) if retrieved.size else 0.0
