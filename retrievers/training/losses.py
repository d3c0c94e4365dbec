"""Losses of bi-encoders: functions of scores, and objectives, which apply them to a batch's
vectors.
"""

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
"""Objective of a training step: vectors of the whole batch's B questions and P passages, the batch
with its tensors, and the model's score → a scalar, differentiable in the vectors."""

TargetLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Scores (B, K), targets (B, K) on any scale, constants to the gradient, and listed (B, K) bool,
which passages belong to a question's list → a scalar."""


def in_batch_objective(
    questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score
) -> Tensor:
    """Each question's positive against all passages of the batch that are not ignored
    (`in_batch_loss`).
    """
    left = batch.ignored.shape[1] - batch.ignored.sum(1)
    if not (left > 1).any():
        raise ConfigError(
            f"no question of a batch of {len(left)} has a negative: nothing can be learned from it",
            hint="raise batch_size, mine negatives with `rag mine`, or set mask_false_negatives=false",
        )
    scores = score(questions, passages)
    ignored = torch.from_numpy(batch.ignored).to(scores.device) if batch.ignored.any() else None
    return in_batch_loss(scores, torch.from_numpy(batch.positives).to(scores.device), ignored)


def pairwise_objective(
    questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score
) -> Tensor:
    """Each question's positive against each of the negatives drawn for it (`pairwise_loss`)."""
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


def target_objective(loss: TargetLoss) -> Objective:
    """A loss between the scores and the targets of each question's list."""

    def objective(
        questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score
    ) -> Tensor:
        assert batch.targets is not None
        scores = score(questions, passages)
        targets = torch.from_numpy(batch.targets).to(scores.device)
        return loss(scores, targets.nan_to_num(0.0), ~targets.isnan())

    return objective


def in_batch_loss(scores: Tensor, positives: Tensor, ignored: Tensor | None = None) -> Tensor:
    r"""Negative log-likelihood of each question's positive among all passages of the batch.

        L = −(1/B) Σ_i log( exp s_{i,p(i)} / Σ_{j not ignored for i} exp s_{ij} )

    Args:
        scores: (B, P) of B questions with P passages: positives and hard negatives of all
            questions.
        positives: (B,) int64, p(i).
        ignored: (B, P) bool, passages left out of a question's denominator (false negatives), or
            None.

    Source:
        Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering",
        equation 2.

    Note:
        The paper ignores nothing: there a passage that answers two questions of a batch is a
        negative of both.

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
    r"""Two-way softmax of (question, positive, negative) triples, from their scores (T,) and (T,).

        L = −(1/T) Σ_t log( exp s⁺_t / (exp s⁺_t + exp s⁻_t) ) = (1/T) Σ_t softplus(s⁻_t − s⁺_t)

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
        Text Retrieval", section 4 and the published code's loss for questions.

    Example:
        >>> round(float(pairwise_loss(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))), 4)
        0.6931
    """
    return functional.softplus(negative - positive).mean()


def kl_loss(
    scores: Tensor,
    targets: Tensor,
    listed: Tensor,
    *,
    target_temperature: float = 1.0,
    per_passage: bool = False,
) -> Tensor:
    r"""KL divergence of a retriever's distribution over each question's list from the target
    distribution.

        L = (1/B) Σ_b Σ_i p_bi (log p_bi − log s_bi),   p = softmax(targets / T'),  s =
        softmax(scores)

    Args:
        target_temperature: temperature T' of the targets.
        per_passage: divide by the number of listed passages instead of B: the published code's
            reduction, whose gradients are smaller by a factor of the list length.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question
        Answering", section 3.2.

    Example:
        >>> scores, targets, listed = torch.zeros(1, 2), torch.tensor([[0.0, 3.0]]), torch.ones(1, 2) > 0
        >>> [round(float(kl_loss(scores, targets, listed, per_passage=each)), 4) for each in (False, True)]
        [0.5023, 0.2511]
        >>> round(float(kl_loss(targets, targets, listed)), 4)
        0.0
    """
    if not bool(listed.any(1).all()):
        raise DataError("a question has no passages to be compared with their targets")
    empty = torch.finfo(scores.dtype).min  # not -inf: 0 · inf has no gradient
    aims = (targets.detach() / target_temperature).masked_fill(~listed, empty).log_softmax(1)
    predicted = scores.masked_fill(~listed, empty).log_softmax(1)
    terms = (aims.exp() * (aims - predicted)).masked_fill(~listed, 0.0)
    return terms.sum() / (listed.sum() if per_passage else len(scores))


def margin_loss(scores: Tensor, targets: Tensor, listed: Tensor) -> Tensor:
    r"""Every better passage of a list should score higher, by the difference of their targets.

        L = 1/M Σ_b Σ_{i,j: g_bi > g_bj} max(0, (g_bi − g_bj) + s_bj − s_bi),   M such pairs

    Source:
        Izacard and Grave 2021, section 3.2 (there the sum over pairs).

    Example:
        >>> float(margin_loss(torch.tensor([[1.0, 5.0]]), torch.tensor([[0.5, 0.0]]), torch.ones(1, 2) > 0))
        4.5
    """
    better = targets.detach()[:, :, None] - targets.detach()[:, None, :]  # (B, K, K)
    rows, first, second = ((better > 0) & listed[:, :, None] & listed[:, None, :]).nonzero(
        as_tuple=True
    )
    if not len(rows):
        return scores[listed].sum() * 0.0
    return (better[rows, first, second] + scores[rows, second] - scores[rows, first]).relu().mean()
