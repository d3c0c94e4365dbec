"""What this machine can do: cores, bf16 arithmetic, threads."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch

__all__ = ["available_cores", "has_fast_bf16", "resolve_device", "use_threads"]

_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


def available_cores() -> int:
    """Cores this process may run on (affinity and container limits that are expressed as affinity)."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


@lru_cache(maxsize=1)
def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def has_fast_bf16(device: str = "cpu") -> bool:
    """Whether bf16 matrix products run in hardware on `device` ("cpu" or "cuda")."""
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    flags = _cpu_flags()
    return bool(flags & _BF16_FLAGS) or "bf16" in flags


def resolve_device(device: str = "auto") -> str:
    """ "auto" becomes "cuda" where there is one, else "cpu"; anything else is returned as given."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def use_threads(count: int | None = None) -> int:
    """Set torch's intra-op threads to `count` (default: OMP_NUM_THREADS, else all cores); returns it."""
    if count is None:
        given = os.environ.get("OMP_NUM_THREADS", "")
        count = int(given) if given.isdigit() and int(given) > 0 else available_cores()
    torch.set_num_threads(count)
    return count
