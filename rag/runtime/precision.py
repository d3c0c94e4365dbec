"""Which arithmetic a network computes in."""

from __future__ import annotations

import torch

from rag.core.errors import ConfigError
from rag.runtime.hardware import has_fast_bf16

__all__ = ["resolve_precision"]


def resolve_precision(precision: str, device: str = "cpu") -> torch.dtype:
    """ "auto" is bf16 where the hardware does it, else fp32.

    Raises:
        ConfigError: for an unknown name.
    """
    if precision == "auto":
        return torch.bfloat16 if has_fast_bf16(device) else torch.float32
    known = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if precision not in known:
        raise ConfigError(f"unknown precision {precision!r}", hint="use auto, bf16 or fp32")
    return known[precision]
