"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["ScheduleName", "schedule_factor"]

ScheduleName = Literal["linear", "constant", "cosine", "wsd"]

_WSD_DECAY = 0.2


def schedule_factor(
    name: ScheduleName,
    step: int,
    total_steps: int,
    *,
    warmup_fraction: float = 0.05,
    warmup_steps: int | None = None,
) -> float:
    """Factor on the peak learning rate: a linear rise, then what `name` says.

    Args:
        name: "linear" falls to 0, "cosine" falls to 0 along half a cosine, "constant" stays, "wsd" (warm-up,
            stable, decay) stays for four fifths of the run and falls to 0 linearly.
        step: 0-based step about to be taken.
        warmup_steps: the same in steps; wins if given, 0 has no warm-up.

    Example:
        >>> [round(schedule_factor("wsd", s, 10, warmup_steps=2), 2) for s in (0, 1, 5, 8, 9)]
        [0.5, 1.0, 1.0, 1.0, 0.5]
        >>> [round(schedule_factor("cosine", s, 10, warmup_steps=0), 2) for s in (0, 5, 9)]
        [1.0, 0.5, 0.02]
    """
    warmup = max(1, round(total_steps * warmup_fraction)) if warmup_steps is None else warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    left = max(0.0, (total_steps - step) / max(1, total_steps - warmup))  # 1 … 0
    if name == "constant":
        return 1.0
    if name == "cosine":
        return 0.5 - 0.5 * math.cos(math.pi * min(1.0, left))
    if name == "wsd":
        return min(1.0, (total_steps - step) / max(1, round(total_steps * _WSD_DECAY)))
    return min(1.0, left)
