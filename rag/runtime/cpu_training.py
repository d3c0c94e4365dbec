"""Attention and dropout that train several times as fast on CPUs as PyTorch's.

PyTorch's fused attention on CPU spends most of a training step in its backward pass when heads are narrow
(32 numbers) and sequences short. Written out as matmul → softmax → matmul, in the dtype of the inputs, the
same work runs through the vendor's matrix kernels, at the price of the (B, H, L, L) score matrix.

For dropout PyTorch draws one Bernoulli number after the other from a Mersenne Twister, in one thread: a fifth
of a training step of a small encoder. Here a 64-bit generator gives four 16-bit numbers at a time, which are
compared with a threshold.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

MATH_ATTENTION = "bf16_math"
_LEVELS = 1 << 16


def math_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """softmax(q·kᵀ·scaling + mask)·v in the dtype of the inputs, with transformers' attention interface.

    Args:
        module: the calling attention layer; its `training` flag switches dropout.
        query: (B, H, L, D); `key` and `value`: (B, H, L', D).
        attention_mask: additive, broadcastable to (B, H, L, L'); or None.

    Returns:
        (B, L, H, D) and None in place of the attention weights.
    """
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query * factor) @ key.transpose(-1, -2)  # (B, H, L, L')
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = dropped_out(scores.softmax(-1), dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), None


def register_math_attention() -> str:
    """Register the attention with transformers; returns the name to pass as `attn_implementation`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(MATH_ATTENTION, math_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(MATH_ATTENTION, eager_mask)
    return MATH_ATTENTION


def dropped_out(values: Tensor, probability: float, training: bool = True) -> Tensor:
    """Zero each number with `probability` and scale the others so that the mean stays.

    The probability is rounded to 1/65,536 and the scale follows the rounded one. Masks depend on torch's
    global generator, as PyTorch's do, but are other masks. On a GPU this is PyTorch's dropout.
    """
    if not training or probability == 0.0:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, probability)
    dropped = min(_LEVELS - 1, round(probability * _LEVELS))
    seed = int(torch.randint(1 << 62, (1,), dtype=torch.int64))
    raw = np.random.SFC64(seed).random_raw(-(-values.numel() // 4))
    bits = torch.from_numpy(raw.view(np.int16)[: values.numel()]).view(values.shape)
    mask = torch.empty(values.shape, dtype=values.dtype)
    torch.ge(bits, dropped - _LEVELS // 2, out=mask)  # straight into the values' dtype
    return values * mask.mul_(_LEVELS / (_LEVELS - dropped))


class FastDropout(nn.Dropout):
    """`nn.Dropout` implemented by `dropped_out`."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop numbers of `input` while training."""
        return dropped_out(input, self.p, self.training)


def use_fast_dropout(model: nn.Module) -> None:
    """Replace every `nn.Dropout` in `model`."""
    for name, child in list(model.named_children()):
        if type(child) is nn.Dropout:
            setattr(model, name, FastDropout(child.p).train(child.training))
        else:
            use_fast_dropout(child)
