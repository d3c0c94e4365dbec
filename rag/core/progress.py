"""Progress with rate and time left: a bar on a terminal, elsewhere a line every ten seconds; stage timers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from rag.core.log import logs_json

_INTERVAL_S = 10.0


class Progress(tqdm):  # type: ignore[misc]  # tqdm has no types
    """Shows the progress of a long job; a server, whose log is JSON, shows none.

    Args:
        total: number of units, or None if unknown.
        unit: what is counted, plural ("passages").
        label: what is being done ("encode").
        initial: units finished by an earlier run.
    """

    def __init__(self, total: int | None, unit: str, label: str, *, initial: int = 0) -> None:
        shown: dict[str, Any] = {"file": sys.stderr, "smoothing": 0.05, "dynamic_ncols": True}
        if not sys.stderr.isatty():
            shown = {"file": _Lines(), "mininterval": _INTERVAL_S, "delay": _INTERVAL_S, "miniters": 1}
            shown |= {"ncols": 0, "position": 0}
        shown["disable"] = logs_json()
        super().__init__(total=total, unit=f" {unit}", desc=label, initial=initial, **shown)


class _Lines:
    """Writes each state of a bar as a line."""

    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(line + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


class StageTimer:
    """Adds up wall time by stage.

    Attributes:
        timings_ms: milliseconds by stage.

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
