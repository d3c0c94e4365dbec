"""How well questions and passages fit, from their vectors: one function for search, validation and loss."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievers.encoders.vectors import Vectors

_BLOCK_NUMBERS = 1 << 24  # similarities of tokens that are in memory at a time


def score(questions: Vectors, passages: Vectors) -> Tensor:
    """Scores (B, P): inner products of one vector per text, `max_sim` of several.

    Example:
        >>> questions, passages = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 4.0], [5.0, 1.0]])
        >>> score(Vectors(questions), Vectors(passages)).tolist()
        [[3.0, 5.0]]
        >>> score(Vectors(questions, torch.tensor([1])), Vectors(passages, torch.tensor([2]))).tolist()
        [[5.0]]
    """
    several = questions.lengths is not None or passages.lengths is not None
    return max_sim(questions, passages) if several else questions.values @ passages.values.T


def max_sim(questions: Vectors, passages: Vectors) -> Tensor:
    r"""Late interaction: every vector of a question finds its best one in the passage, and they are added.

        s(q, p) = Σ_i max_j q_i · p_j

    Passages are compared in blocks: forward and backward need memory for one block of similarities, not for
    those of all tokens with all tokens.

    Args:
        questions: B texts of one vector or more; one without vectors scores 0.
        passages: P texts of one vector or more, each of at least one.

    Returns:
        (B, P), differentiable in both.

    Source:
        Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via Contextualized Late
        Interaction over BERT", equation 3.
    """
    asked = questions.values  # (T, D)
    found, kept = passages.padded()  # (P, L, D), (P, L)
    step = max(1, _BLOCK_NUMBERS // max(1, len(asked) * kept.shape[1]))
    best = []
    for block, real in zip(found.split(step), kept.split(step), strict=True):
        similar = asked @ block.flatten(0, 1).T  # (T, block · L)
        similar = similar.view(len(asked), *real.shape).masked_fill(~real, float("-inf"))
        best.append(similar.max(-1).values)  # (T, block)
    each = torch.cat(best, 1)  # (T, P)
    if questions.lengths is None:
        return each
    owner = torch.arange(len(questions), device=each.device).repeat_interleave(questions.lengths)
    return each.new_zeros(len(questions), each.shape[1]).index_add(0, owner, each)
