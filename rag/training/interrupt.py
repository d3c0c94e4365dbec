"""Ctrl-C and SIGTERM without loss: the run ends after the current step is finished and saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rag.core.log import get_logger


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM inside the block sets; the second ends the program at once.

    Only the main thread can watch for signals; in others the event is never set.
    """
    requested = threading.Event()

    def request(*_: object) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        get_logger(__name__).warning("the run ends when this step is saved; once more ends it now")

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
