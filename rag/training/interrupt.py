"""Ctrl-C and SIGTERM without loss: the run ends after the current step is finished and saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from rag.core.log import get_logger

_SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupt:
    """Notices the first Ctrl-C or SIGTERM while it is entered; the second ends the program at once.

    Other handlers of these signals, and threads beside the main one, are left alone.

    Attributes:
        requested: the run should end.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed: list[signal.Signals] = []

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._installed = [n for n, usual in _SIGNALS.items() if signal.getsignal(n) is usual]
        for number in self._installed:
            signal.signal(number, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._installed:
            signal.signal(number, _SIGNALS[number])

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        get_logger(__name__).warning("the run ends when this step is saved; once more ends it now")
