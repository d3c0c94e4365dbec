"""Span losses with shared normalisation: one softmax over the tokens of all passages of a question."""

from __future__ import annotations

from typing import Literal

import torch

__all__ = ["shared_span_loss"]


def shared_span_loss(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    allowed: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    acceptable: torch.Tensor,
    objective: Literal["first", "mml", "hard-em"] = "first",
) -> torch.Tensor:
    r"""Negative log-likelihood of the acceptable spans, averaged over questions.

    With P_s(t) = softmax of the start logits over all allowed tokens t of all passages of the question (each
    passage's [CLS] stands for "no answer here"), P_e likewise, and A the acceptable spans:

        first, mml:  L = −½ log Σ_{(s,e)∈A} P_s(s)·P_e(e)
        hard-em:     L = −½ log max_{(s,e)∈A} P_s(s)·P_e(e)

    ("first" differs from "mml" in the data: A holds the annotated span alone.) Because the softmax runs
    over the passages together, a logit means the same in each of them and spans can be compared across
    passages.

    Args:
        start_logits, end_logits: (B, T) float32, T = passages × tokens of one question, flattened.
        allowed: (B, T) bool.
        starts, ends: (B, A) int64 positions in T; `acceptable` (B, A) bool marks the real ones.

    Returns:
        A scalar.

    Source:
        Clark and Gardner 2018, "Simple and Effective Multi-Paragraph Reading Comprehension", section 3
        (shared normalisation); Min et al. 2019, "A Discrete Hard EM Approach", equations 2 to 4.

    Note:
        The factor ½ keeps the scale of the usual mean of start and end cross-entropy. Questions without an
        answer always sum over the [CLS] of their passages, also under "hard-em" with one passage more or
        less.

    Example:
        >>> zeros = torch.zeros(1, 4)
        >>> place = torch.tensor([[2]])
        >>> yes = torch.ones(1, 4, dtype=torch.bool)
        >>> round(float(shared_span_loss(zeros, zeros, yes, place, place, place > 0)), 4)
        1.3863
    """
    floor = torch.finfo(start_logits.dtype).min
    log_start = start_logits.masked_fill(~allowed, floor).log_softmax(-1)  # (B, T)
    log_end = end_logits.masked_fill(~allowed, floor).log_softmax(-1)
    pairs = log_start.gather(1, starts) + log_end.gather(1, ends)  # (B, A)
    pairs = pairs.masked_fill(~acceptable, floor)
    best = pairs.amax(-1) if objective == "hard-em" else pairs.logsumexp(-1)
    return -0.5 * best.mean()
