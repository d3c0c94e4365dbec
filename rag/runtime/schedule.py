"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

__all__ = ["linear_schedule"]


def linear_schedule(step: int, total_steps: int, warmup_fraction: float = 0.05, floor: float = 0.0) -> float:
    """Factor on the peak learning rate: a linear rise, then a linear fall to `floor`.

    Args:
        step: 0-based step about to be taken.
        total_steps: steps of the whole run.
        warmup_fraction: share of the run that rises.
        floor: factor at the end.

    Example:
        >>> [round(linear_schedule(s, 10, 0.2), 2) for s in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.12]
    """
    warmup = max(1, round(total_steps * warmup_fraction))
    if step < warmup:
        return (step + 1) / warmup
    remaining = (total_steps - step) / max(1, total_steps - warmup)
    return floor + (1.0 - floor) * max(0.0, min(1.0, remaining))
