"""The best spans of a passage, found without a loop over tokens."""

from __future__ import annotations

import torch

__all__ = ["best_spans"]


def best_spans(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_allowed: torch.Tensor,
    end_allowed: torch.Tensor,
    max_tokens: int,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `top_k` spans with the highest start + end logit in every row, of at most `max_tokens` tokens.

    Args:
        start_logits, end_logits: (R, L) float32.
        start_allowed, end_allowed: (R, L) bool, tokens an answer may start or end on.
        max_tokens: longest span in tokens.
        top_k: spans per row.

    Returns:
        scores (R, top_k) float32, descending, -inf where a row has fewer spans; starts and ends (R, top_k)
        int64, the end inclusive.
    """
    rows, length = start_logits.shape
    width = min(max_tokens, length)
    floor = float("-inf")
    start = start_logits.masked_fill(~start_allowed, floor)
    end = end_logits.masked_fill(~end_allowed, floor)
    padded = torch.nn.functional.pad(end, (0, width - 1), value=floor)
    scores = start.unsqueeze(-1) + padded.unfold(1, width, 1)  # (R, L, width)
    count = min(top_k, length * width)
    values, flat = scores.reshape(rows, length * width).topk(count, dim=-1)
    starts = flat // width
    ends = starts + flat % width
    if count < top_k:
        values = torch.nn.functional.pad(values, (0, top_k - count), value=floor)
        starts = torch.nn.functional.pad(starts, (0, top_k - count))
        ends = torch.nn.functional.pad(ends, (0, top_k - count))
    return values, starts, ends
