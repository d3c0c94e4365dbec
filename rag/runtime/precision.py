"""Which arithmetic a network computes in."""

from __future__ import annotations

import torch

from rag.core.errors import ConfigError
from rag.runtime.hardware import has_bf16, has_fast_bf16

__all__ = ["resolve_precision"]


def resolve_precision(precision: str, device: str = "cpu") -> torch.dtype:
    """ "auto" is bf16 where the hardware does it, else fp32.

    Raises:
        ConfigError: for an unknown name, or bf16 where `device` cannot compute it.
    """
    if precision == "auto":
        return torch.bfloat16 if has_fast_bf16(device) else torch.float32
    known = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if precision not in known:
        raise ConfigError(f"unknown precision {precision!r}", hint="use auto, bf16 or fp32")
    if precision == "bf16" and not has_bf16(device):
        raise ConfigError(
            f"precision is bf16, and this machine's {device} has no bf16 arithmetic",
            hint="use auto, which is the fastest that works here, or fp32",
        )
    return known[precision]
