"""Losses of bi-encoders: functions of a batch's scores and its labels or targets."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from rag.core.log import get_logger
from retrievers.examples.batches import IGNORED, NEGATIVE, RetrieverBatch, has_negatives

BatchLoss = Callable[[Tensor, RetrieverBatch], Tensor]
"""Scores (B, P) of the whole batch's B questions and P passages, over the temperature, and the
batch, on their device → a scalar, differentiable in the scores."""


def in_batch_loss(scores: Tensor, batch: RetrieverBatch) -> Tensor:
    r"""Negative log-likelihood of each question's positive among all passages of the batch.

        L = −(1/B) Σ_i log( exp s_{i,p(i)} / Σ_{j not ignored for i} exp s_{ij} )

    Args:
        scores: (B, P) of B questions with P passages: positives and hard negatives of all
            questions.

    A question without a negative has the loss zero; a batch of such questions is warned about.

    Source:
        Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering",
        equation 2.

    Note:
        The paper ignores nothing: there a passage that answers two questions of a batch is a
        negative of both.

    Example:
        >>> from retrievers.examples.batches import OTHER, POSITIVE
        >>> scores = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 2.0]])
        >>> labels = torch.tensor([[POSITIVE, OTHER, OTHER], [OTHER, POSITIVE, OTHER]])
        >>> round(float(in_batch_loss(scores, RetrieverBatch([], [], labels))), 4)
        0.4991
        >>> labels[1, 2] = IGNORED
        >>> round(float(in_batch_loss(scores, RetrieverBatch([], [], labels))), 4)
        0.1832
    """
    if not has_negatives(batch):
        message = (
            "a batch teaches nothing: its %d questions have the same positives, and no negatives"
        )
        get_logger(__name__).warning(message, len(scores))
    compared = scores.masked_fill(batch.labels == IGNORED, float("-inf"))
    return functional.cross_entropy(compared, batch.labels.argmax(1))


def pairwise_loss(scores: Tensor, batch: RetrieverBatch) -> Tensor:
    r"""Two-way softmax of each question's positive and each of the T negatives drawn for it.

        L = −(1/T) Σ_t log( exp s⁺_t / (exp s⁺_t + exp s⁻_t) ) = (1/T) Σ_t softplus(s⁻_t − s⁺_t)

    A batch without any has the loss zero: mining may find none for a few questions.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
        Text Retrieval", section 4 and the published code's loss for questions.

    Example:
        >>> from retrievers.examples.batches import OTHER, POSITIVE
        >>> labels = torch.tensor([[POSITIVE, NEGATIVE], [OTHER, POSITIVE]])
        >>> round(float(pairwise_loss(torch.ones(2, 2), RetrieverBatch([], [], labels))), 4)
        0.6931
    """
    questions, negatives = (batch.labels == NEGATIVE).nonzero(as_tuple=True)
    if not len(questions):
        return scores.sum() * 0.0
    positives = batch.labels.argmax(1)[questions]
    return functional.softplus(scores[questions, negatives] - scores[questions, positives]).mean()


def kl_loss(scores: Tensor, batch: RetrieverBatch, *, target_temperature: float = 1.0) -> Tensor:
    r"""KL divergence of a retriever's distribution over each question's list from the target
    distribution.

        L = (1/B) Σ_b Σ_i p_bi (log p_bi − log s_bi),   p = softmax(targets / T'),  s =
        softmax(scores)

    Args:
        target_temperature: temperature T' of the targets.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question
        Answering", section 3.2.

    Note:
        The published code also divides by the number of passages, a factor that Adam takes out.

    Example:
        >>> batch = RetrieverBatch([], [], torch.zeros(1, 2), torch.tensor([[0.0, 3.0]]))
        >>> round(float(kl_loss(torch.zeros(1, 2), batch)), 4)
        0.5023
        >>> round(float(kl_loss(torch.tensor([[0.0, 3.0]]), batch)), 4)
        0.0
    """
    targets, is_listed = _targets(batch)

    empty = torch.finfo(scores.dtype).min  # not -inf: 0 · inf has no gradient
    aims = (targets / target_temperature).masked_fill(~is_listed, empty).log_softmax(1)
    predicted = scores.masked_fill(~is_listed, empty).log_softmax(1)
    terms = (aims.exp() * (aims - predicted)).masked_fill(~is_listed, 0.0)
    return terms.sum() / len(scores)


def margin_loss(
    scores: Tensor, batch: RetrieverBatch, *, target_temperature: float = 1.0
) -> Tensor:
    r"""Every better passage of a list should score higher, by the difference of their targets.

        L = 1/M Σ_b Σ_{i,j: g_bi > g_bj} max(0, (g_bi − g_bj) + s_bj − s_bi),   M such pairs

    Args:
        target_temperature: divides the targets g.

    Source:
        Izacard and Grave 2021, section 3.2 (there the sum over pairs).

    Example:
        >>> batch = RetrieverBatch([], [], torch.zeros(1, 2), torch.tensor([[0.5, 0.0]]))
        >>> float(margin_loss(torch.tensor([[1.0, 5.0]]), batch))
        4.5
    """
    targets, is_listed = _targets(batch)
    targets = targets / target_temperature
    better = targets[:, :, None] - targets[:, None, :]  # (B, K, K)
    is_pair = (better > 0) & is_listed[:, :, None] & is_listed[:, None, :]
    rows, first, second = is_pair.nonzero(as_tuple=True)
    if not len(rows):
        return scores[is_listed].sum() * 0.0
    return (better[rows, first, second] + scores[rows, second] - scores[rows, first]).relu().mean()


def _targets(batch: RetrieverBatch) -> tuple[Tensor, Tensor]:
    """The targets (B, P), and which passages are in each question's list."""
    assert batch.targets is not None
    return batch.targets.nan_to_num(0.0), ~batch.targets.isnan()
