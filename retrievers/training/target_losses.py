"""Losses towards float targets: a retriever learns how a reader scores each question's list of passages.

Each is a function of scores (B, K), targets (B, K) on any scale, constants to the gradient, and `listed`
(B, K) bool, which passages belong to a question's list (None: all).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rag.core.errors import ConfigError, DataError
from retrievers.encoders.vectors import Vectors
from retrievers.examples.batches import RetrieverBatch
from retrievers.training.losses import Objective, Score

TargetLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Scores (B, K), targets (B, K), listed (B, K) → a scalar."""


def target_objective(loss: TargetLoss) -> Objective:
    """A loss between the scores and the targets of each question's list."""

    def objective(questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score) -> Tensor:
        if batch.targets is None:
            raise ConfigError("the batch has no targets", hint="draw it with `TargetBatches`")
        scores = score(questions, passages)
        targets = torch.from_numpy(batch.targets).to(scores.device)
        return loss(scores, targets.nan_to_num(0.0), ~targets.isnan())

    return objective


def kl_loss(
    scores: Tensor,
    targets: Tensor,
    listed: Tensor | None = None,
    *,
    temperature: float = 1.0,
    target_temperature: float = 1.0,
    per_passage: bool = False,
) -> Tensor:
    r"""KL divergence of a retriever's distribution over each question's list from the target distribution.

        L = (1/B) Σ_b Σ_i p_bi (log p_bi − log s_bi),   p = softmax(targets / T'),  s = softmax(scores / T)

    Args:
        scores: (B, K).
        targets: (B, K) on any scale; constants to the gradient.
        listed: (B, K) bool, which belong to a question's list; None: all.
        temperature: temperature T of the scores.
        target_temperature: temperature T' of the targets.
        per_passage: divide by the number of listed passages instead of B: the published code's reduction,
            whose gradients are smaller by a factor of the list length.

    Raises:
        DataError: a question has an empty list.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question Answering",
        section 3.2.

    Example:
        >>> scores, targets = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 3.0]])
        >>> [round(float(kl_loss(scores, targets, per_passage=each)), 4) for each in (False, True)]
        [0.5023, 0.2511]
        >>> round(float(kl_loss(targets, targets)), 4)
        0.0
    """
    listed = torch.ones_like(scores, dtype=torch.bool) if listed is None else listed
    if not bool(listed.any(1).all()):
        raise DataError("a question has no passages to be compared with their targets")
    empty = torch.finfo(scores.dtype).min  # not -inf: 0 · inf has no gradient
    wanted = (targets.detach() / target_temperature).masked_fill(~listed, empty).log_softmax(1)
    predicted = (scores / temperature).masked_fill(~listed, empty).log_softmax(1)
    terms = (wanted.exp() * (wanted - predicted)).masked_fill(~listed, 0.0)
    return terms.sum() / (listed.sum() if per_passage else len(scores))


def margin_loss(scores: Tensor, targets: Tensor, listed: Tensor | None = None) -> Tensor:
    r"""Every better passage of a list should score higher, by the difference of their targets.

        L = 1/M Σ_b Σ_{i,j: g_bi > g_bj} max(0, (g_bi − g_bj) + s_bj − s_bi),   M such pairs

    Source:
        Izacard and Grave 2021, section 3.2 (there the sum over pairs).

    Example:
        >>> float(margin_loss(torch.tensor([[1.0, 5.0]]), torch.tensor([[0.5, 0.0]])))
        4.5
    """
    listed = torch.ones_like(scores, dtype=torch.bool) if listed is None else listed
    better = targets.detach()[:, :, None] - targets.detach()[:, None, :]  # (B, K, K)
    rows, first, second = ((better > 0) & listed[:, :, None] & listed[:, None, :]).nonzero(as_tuple=True)
    if not len(rows):
        return scores[listed].sum() * 0.0
    return (better[rows, first, second] + scores[rows, second] - scores[rows, first]).relu().mean()
