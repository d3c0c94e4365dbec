"""Losses of bi-encoders: functions of scores, and objectives, which apply them to a batch's vectors."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rag.core.errors import ConfigError, DataError
from retrievers.encoders.vectors import Vectors
from retrievers.examples.batches import RetrieverBatch

Score = Callable[[Vectors, Vectors], Tensor]
"""Vectors of n questions and m passages → scores (n, m)."""

Objective = Callable[[Vectors, Vectors, RetrieverBatch, Score], Tensor]
"""Objective of a training step: vectors of the whole batch's B questions and P passages, the batch with its
tensors, and the model's score → a scalar, differentiable in the vectors."""


def in_batch_objective(questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score) -> Tensor:
    """Each question's positive against all passages of the batch that are not ignored (`in_batch_loss`).

    Raises:
        ConfigError: no question of the batch has a negative: the loss would be 0, whatever is learned.
    """
    left = batch.ignored.shape[1] - batch.ignored.sum(1)
    if not (left > 1).any():
        raise ConfigError(
            f"no question of a batch of {len(left)} has a negative: nothing can be learned from it",
            hint="raise batch_size, add hard negatives, or check why all other passages count as answers",
        )
    scores = score(questions, passages)
    ignored = torch.from_numpy(batch.ignored).to(scores.device) if batch.ignored.any() else None
    return in_batch_loss(scores, torch.from_numpy(batch.positives).to(scores.device), ignored)


def pairwise_objective(questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score) -> Tensor:
    """Each question's positive against each of the negatives drawn for it (`pairwise_loss`); none are shared.

    Raises:
        ConfigError: no question of the batch has a negative of its own.
    """
    rows, negatives = batch.drawn
    is_wrong = ~batch.ignored[rows, negatives] & (negatives != batch.positives[rows])
    rows, negatives = rows[is_wrong], negatives[is_wrong]
    if not len(rows):
        raise ConfigError(
            f"no question of a batch of {len(batch.positives)} has a mined negative, which this loss is made "
            "of",
            hint="mine negatives first (`rag mine`), or use the in-batch loss",
        )
    scores = score(questions, passages)
    take = torch.from_numpy(np.stack([rows, batch.positives[rows], negatives])).to(scores.device)
    return pairwise_loss(scores[take[0], take[1]], scores[take[0], take[2]])


def in_batch_loss(scores: Tensor, positives: Tensor, ignored: Tensor | None = None) -> Tensor:
    r"""Negative log-likelihood of each question's positive among all passages of the batch.

        L = −(1/B) Σ_i log( exp s_{i,p(i)} / Σ_{j not ignored for i} exp s_{ij} )

    Args:
        scores: (B, P) of B questions with P passages: positives and hard negatives of all questions.
        positives: (B,) int64, p(i).
        ignored: (B, P) bool, passages left out of a question's denominator (false negatives), or None.

    Returns:
        A scalar, the mean over the questions.

    Raises:
        DataError: a question's own positive is ignored.

    Source:
        Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering", equation 2.

    Note:
        The paper ignores nothing: there a passage that answers two questions of a batch is a negative of
        both.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 2.0]])
        >>> round(float(in_batch_loss(scores, torch.tensor([0, 1]))), 4)
        0.4991
        >>> ignored = torch.tensor([[False, False, False], [False, False, True]])
        >>> round(float(in_batch_loss(scores, torch.tensor([0, 1]), ignored)), 4)
        0.1832
    """
    if ignored is not None:
        if bool(ignored.gather(1, positives[:, None]).any()):
            raise DataError("a question's own positive is among the passages ignored for it")
        scores = scores.masked_fill(ignored, float("-inf"))
    return functional.cross_entropy(scores, positives)


def pairwise_loss(positive: Tensor, negative: Tensor) -> Tensor:
    r"""Two-way softmax of (question, positive, negative) triples.

        L = −(1/T) Σ_t log( exp s⁺_t / (exp s⁺_t + exp s⁻_t) ) = (1/T) Σ_t softplus(s⁻_t − s⁺_t)

    Args:
        positive: (T,) scores of the positives.
        negative: (T,) scores of the negatives.

    Returns:
        A scalar, the mean over the triples.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text
        Retrieval", section 4 and the published code's loss for questions.

    Example:
        >>> round(float(pairwise_loss(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))), 4)
        0.6931
    """
    return functional.softplus(negative - positive).mean()
