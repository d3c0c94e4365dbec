"""How many questions each API key may ask of this process: an allowance per key that grows evenly."""

import time
from collections.abc import Callable


class KeyRates:
    """Counts the questions of each key against a limit per minute.

    A key that was idle may ask a whole minute's questions at once. A request is accepted while there is room
    for one question; its further questions delay the next requests.

    Source: ITU-T I.371, the generic cell rate algorithm; per key it stores one number, the time at which the
        allowance is full again.

    Example:
        >>> rates = KeyRates(2, clock=lambda: 100.0)
        >>> [rates.charge(key) for key in "aaab"]
        [0.0, 0.0, 30.0, 0.0]
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = 60.0 / per_minute, clock
        self._full_at_s: dict[str, float] = {}

    def charge(self, key: str, questions: int = 1) -> float:
        """Count these questions and return 0.0; or, if there is no room, count none and return the seconds
        until there is.
        """
        now_s = self._clock()
        full_at_s = max(now_s, self._full_at_s.get(key, 0.0))
        wait_s = full_at_s - now_s - (60.0 - self._interval_s)
        if wait_s > 1e-9:
            return wait_s
        self._full_at_s[key] = full_at_s + questions * self._interval_s
        return 0.0
