"""Attention as two plain matrix products, several times faster than SDPA's backward pass on CPUs.

PyTorch's fused attention on CPU spends most of a training step in its backward pass when heads are narrow
(32 numbers) and sequences short. Written out as matmul → softmax → matmul, in the dtype of the inputs, the
same work runs through the vendor's matrix kernels. The price is the (B, H, L, L) score matrix, small at L ≤
512.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rag.runtime.dropout import dropout as fast_dropout

__all__ = ["MATH_ATTENTION", "math_attention", "register_math_attention"]

MATH_ATTENTION = "bf16_math"


def math_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(q·kᵀ·scaling + mask)·v in the dtype of the inputs, with transformers' attention interface.

    Args:
        module: the attention layer that asks; its `training` flag switches dropout.
        query: (B, H, L, D); `key` and `value`: (B, H, L', D).
        attention_mask: additive, broadcastable to (B, H, L, L'), very negative where not allowed; or None.

    Returns:
        (B, L, H, D) and None in place of the attention weights.
    """
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query * factor) @ key.transpose(-1, -2)  # (B, H, L, L')
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    weights = fast_dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), None


def register_math_attention() -> str:
    """Make the attention known to transformers; returns the name to pass as `attn_implementation`."""
    ALL_ATTENTION_FUNCTIONS.register(MATH_ATTENTION, math_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(MATH_ATTENTION, eager_mask)
    return MATH_ATTENTION
