"""Ctrl-C without loss: the run ends after the current step is finished and saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from rag.core.log import get_logger


class Interrupt:
    """Notices the first Ctrl-C while it is entered; the second ends the program at once.

    Other handlers of the signal, and threads beside the main one, are left alone.

    Attributes:
        asked: somebody wants the run to end.
    """

    def __init__(self) -> None:
        self.asked = False
        self._installed = False

    def __enter__(self) -> Interrupt:
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._notice)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        get_logger(__name__).warning("the run ends when this step is saved; press Ctrl-C again to end it now")
