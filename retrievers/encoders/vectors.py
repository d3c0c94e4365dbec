"""Vectors of texts, one or several per text, and their scores: one function wherever texts are
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK_NUMBERS = 1 << 24  # similarities of tokens that are in memory at a time


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of n texts end to end, T in all.

    Attributes:
        values: (T, D).
        lengths: (n,) int64 number of vectors per text; None: one each, so that T is n.

    Example:
        >>> hidden = torch.arange(8.0).view(2, 2, 2)
        >>> several = Vectors.of_tokens(hidden, torch.tensor([[True, True], [True, False]]))
        >>> len(several), several.values.tolist()
        (2, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
        >>> several.take([1, 0]).lengths.tolist()
        [1, 2]
    """

    values: Tensor
    lengths: Tensor | None = None

    @classmethod
    def of_tokens(cls, values: Tensor, mask: Tensor) -> Vectors:
        """The vectors of (n, L, D) for which `mask` (n, L) is True."""
        return cls(values[mask], mask.sum(1))

    @classmethod
    def joined(cls, parts: Sequence[Vectors]) -> Vectors:
        """The texts of all parts, in order."""
        values = torch.cat([part.values for part in parts])
        lengths = [part.lengths for part in parts if part.lengths is not None]
        return cls(values, torch.cat(lengths) if lengths else None)

    def __len__(self) -> int:
        return len(self.values) if self.lengths is None else len(self.lengths)

    def cpu(self) -> Vectors:
        """The vectors on the CPU."""
        lengths = None if self.lengths is None else self.lengths.cpu()
        return Vectors(self.values.cpu(), lengths)

    def take(self, rows: Sequence[int]) -> Vectors:
        """The vectors of some texts, in the order of `rows`."""
        if self.lengths is None:
            return Vectors(self.values[list(rows)])
        parts = self.values.split(self.lengths.tolist())
        chosen = [parts[row] for row in rows]
        return Vectors(torch.cat(chosen) if chosen else self.values[:0], self.lengths[list(rows)])

    def padded(self) -> tuple[Tensor, Tensor]:
        """(n, L, D) with zeros behind each text's vectors, and (n, L) bool where there is one."""
        lengths = self.lengths
        if lengths is None:
            lengths = self.values.new_ones(len(self), dtype=torch.int64)
        longest = max([1, *lengths.tolist()])
        mask = torch.arange(longest, device=lengths.device) < lengths[:, None]  # (n, L)
        filled = self.values.new_zeros((*mask.shape, self.values.shape[-1]))
        return filled.masked_scatter(mask[:, :, None], self.values), mask


def score(questions: Vectors, passages: Vectors) -> Tensor:
    """Scores (B, P): inner products of one vector per text, `max_sim` of several.

    Example:
        >>> questions, passages = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 4.0], [5.0, 1.0]])
        >>> score(Vectors(questions), Vectors(passages)).tolist()
        [[3.0, 5.0]]
        >>> score(Vectors(questions, torch.tensor([1])), Vectors(passages, torch.tensor([2]))).tolist()
        [[5.0]]
    """
    if questions.lengths is None and passages.lengths is None:
        return questions.values @ passages.values.T
    return max_sim(questions, passages)


def max_sim(questions: Vectors, passages: Vectors) -> Tensor:
    r"""Late interaction: the sum over a question's vectors of the best inner product in the
    passage.

        s(q, p) = Σ_i max_j q_i · p_j

    Passages are compared in blocks: forward and backward need memory for one block of similarities,
    not for those of all tokens with all tokens.

    Args:
        questions: vectors of B texts; a question without vectors scores 0.
        passages: vectors of P texts, at least one vector per text.

    Returns:
        (B, P), differentiable in both.

    Source:
        Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via
        Contextualized Late Interaction over BERT", equation 3.
    """
    tokens = questions.values  # (T, D)
    values, mask = passages.padded()  # (P, L, D), (P, L)
    step = max(1, _BLOCK_NUMBERS // max(1, len(tokens) * mask.shape[1]))
    best = []
    for block, real in zip(values.split(step), mask.split(step), strict=True):
        similarities = tokens @ block.flatten(0, 1).T  # (T, block · L)
        similarities = similarities.view(len(tokens), *real.shape)
        best.append(similarities.masked_fill(~real, float("-inf")).max(-1).values)  # (T, block)
    token_scores = torch.cat(best, 1)  # (T, P)
    if questions.lengths is None:
        return token_scores
    numbers = torch.arange(len(questions), device=token_scores.device)
    question_of = numbers.repeat_interleave(questions.lengths)  # (T,)
    zeros = token_scores.new_zeros(len(questions), token_scores.shape[1])
    return zeros.index_add(0, question_of, token_scores)
