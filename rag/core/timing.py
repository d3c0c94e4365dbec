"""Where the time of a request goes: named stages, wall milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["StageTimer"]


class StageTimer:
    """Adds up wall time by stage.

    Example:
        >>> timer = StageTimer()
        >>> with timer("search"):
        ...     pass
        >>> sorted(timer.timings_ms)
        ['search']
    """

    def __init__(self) -> None:
        self.timings_ms: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time the body of a `with` block and add it to `stage`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            elapsed_ms = (time.perf_counter() - started) * 1000.0
            self.timings_ms[stage] = self.timings_ms.get(stage, 0.0) + elapsed_ms
