"""Progress with rate and time left: a bar on a terminal, elsewhere a line every ten seconds; stage timers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

from rag.core.log import get_logger, logs_json


def format_duration(seconds: float) -> str:
    """Human form of a duration.

    Example:
        >>> format_duration(42.4), format_duration(192), format_duration(7384)
        ('42s', '3m12s', '2h03m')
    """
    total = int(max(0.0, seconds))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    return f"{total // 3600}h{total % 3600 // 60:02d}m"


def format_seconds(seconds: float) -> str:
    """Seconds or milliseconds with three figures.

    Example:
        >>> format_seconds(0.0123), format_seconds(2.5), format_seconds(124.2)
        ('12.3 ms', '2.50 s', '124 s')
    """
    if seconds < 1.0:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


class Progress:
    """Shows the progress of a long job.

    Args:
        total: number of units, or None if unknown.
        unit: what is counted, plural ("passages").
        label: what is being done ("encode").
        initial: units finished by an earlier run.
        interval_s: seconds between two lines when `stream` is not a terminal.
    """

    def __init__(
        self,
        total: int | None,
        unit: str,
        label: str,
        *,
        initial: int = 0,
        stream: TextIO | None = None,
        interval_s: float = 10.0,
    ) -> None:
        self.total, self.unit, self.label = total, unit, label
        self.count, self.initial = initial, initial
        self.interval_s = interval_s
        self._stream = stream if stream is not None else sys.stderr
        self._started = self._last_line = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        self._started = self._last_line = time.monotonic()
        if self._stream.isatty() and not logs_json():
            self._bar = tqdm(
                total=self.total, unit=f" {self.unit}", desc=self.label, initial=self.initial,
                file=self._stream, smoothing=0.05, dynamic_ncols=True,
            )  # fmt: skip
        return self

    def update(self, n: int = 1) -> None:
        """Count `n` more units."""
        self.count += n
        if self._bar is not None:
            self._bar.update(n)
        elif time.monotonic() - self._last_line >= self.interval_s:
            self._last_line = time.monotonic()
            self._write(self.line())

    @property
    def rate(self) -> float:
        """Units per second since this run began."""
        return (self.count - self.initial) / max(time.monotonic() - self._started, 1e-9)

    def _speed(self) -> str:
        if 0 < self.rate < 0.1:
            return f"{1 / self.rate:,.0f} s each"
        return f"{self.rate:,.1f} {self.unit}/s"

    def line(self) -> str:
        """One line of text: count, share, rate, time left."""
        parts = f"{self.label}: {self.count:,}"
        if self.total:
            parts += f"/{self.total:,} {self.unit} ({100 * self.count / self.total:.0f} %)"
        else:
            parts += f" {self.unit}"
        parts += f", {self._speed()}"
        if self.total and self.count > self.initial:
            parts += f", {format_duration((self.total - self.count) / self.rate)} left"
        return parts

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif time.monotonic() - self._started >= 2.0:
            elapsed = format_duration(time.monotonic() - self._started)
            state = "done" if kind is None else "stopped"
            counted = f"{self.count:,} {self.unit} in {elapsed}"
            self._write(f"{self.label}: {state}, {counted}, {self._speed()}")

    def _write(self, text: str) -> None:
        if self._stream is sys.stderr and logs_json():
            get_logger(__name__).info(text)
            return
        self._stream.write(text + "\n")
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
