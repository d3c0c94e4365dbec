"""Progress with rate and time left: a bar on a terminal, elsewhere a line every ten seconds; stage timers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

from rag.core.log import logs_json


class Progress:
    """Shows the progress of a long job; a server, whose log is JSON, shows none.

    Args:
        total: number of units, or None if unknown.
        unit: what is counted, plural ("passages").
        label: what is being done ("encode").
        initial: units finished by an earlier run.
        interval_s: seconds between two lines when `stream` is not a terminal.
    """

    def __init__(
        self, total: int | None, unit: str, label: str, *, initial: int = 0, stream: TextIO | None = None,
        interval_s: float = 10.0,
    ) -> None:  # fmt: skip
        stream = stream if stream is not None else sys.stderr
        shown: dict[str, Any] = {"file": stream, "smoothing": 0.05, "dynamic_ncols": True}
        if not stream.isatty():
            shown = {"file": _Lines(stream), "mininterval": interval_s, "delay": interval_s, "miniters": 1}
            shown |= {"ncols": 0, "position": 0}
        shown["disable"] = logs_json()
        self._bar: Any = tqdm(total=total, unit=f" {unit}", desc=label, initial=initial, **shown)

    def __enter__(self) -> Progress:
        return self

    def update(self, n: int = 1) -> None:
        """Count `n` more units."""
        self._bar.update(n)

    def __exit__(self, *raised: object) -> None:
        self._bar.close()


class _Lines:
    """Writes each state of a bar as a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if line := text.strip():
            self._stream.write(line + "\n")

    def flush(self) -> None:
        self._stream.flush()


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
