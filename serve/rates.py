"""How many questions each API key may ask: an allowance per key that grows evenly, shared by all workers."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np


class KeyRates:
    """Counts the questions of each key against a limit per minute.

    A key that was idle may ask a whole minute's questions at once. A request is accepted while there is room
    for one question; its further questions delay the next requests.

    Args:
        per_minute: questions of one key.
        keys: all keys; every process gives them in the same order.
        place: file shared with the server's other processes; None: this process counts alone.
        clock: seconds, the same for all processes.

    Source: ITU-T I.371, the generic cell rate algorithm; per key it stores one number, the time at which the
        allowance is full again.

    Example:
        >>> rates = KeyRates(2, ["a", "b"], clock=lambda: 100.0)
        >>> [rates.charge(key) for key in "aaab"]
        [0.0, 0.0, 30.0, 0.0]
    """

    def __init__(
        self, per_minute: int, keys: Sequence[str], place: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._interval_s, self._clock = 60.0 / per_minute, clock
        self._rows = {key: row for row, key in enumerate(keys)}
        self._lock = None if place is None else os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
        self._full_at_s = np.zeros(len(keys))
        if place is not None and self._lock is not None:
            os.truncate(self._lock, self._full_at_s.nbytes)  # keeps what is there
            self._full_at_s = np.memmap(place, np.float64, "r+", shape=self._full_at_s.shape)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def charge(self, key: str, questions: int = 1) -> float:
        """Count these questions and return 0.0; or, if there is no room, count none and return the seconds
        until there is.
        """
        row = self._rows[key]
        with self._locked():
            now_s = self._clock()
            full_at_s = max(now_s, float(self._full_at_s[row]))
            wait_s = full_at_s - now_s - (60.0 - self._interval_s)
            if wait_s > 1e-9:
                return wait_s
            self._full_at_s[row] = full_at_s + questions * self._interval_s
            return 0.0
