"""Whether anybody waits for what a thread computes; what takes long asks that now and then."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_wanted = ContextVar[Callable[[], bool]]("is_wanted", default=lambda: True)


@contextmanager
def wanted_while(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Compute what stands in the block as long as this function says so; it is called on any
    thread.
    """
    token = _is_wanted.set(is_wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)


def check_wanted() -> None:
    """End what nobody waits for any more.

    Raises:
        CancelledError: that of asyncio, which no handler of an `Exception` takes for a failure.

    Example:
        >>> with wanted_while(lambda: False):
        ...     check_wanted()
        Traceback (most recent call last):
        ...
        asyncio.exceptions.CancelledError: nobody waits for it
    """
    if not _is_wanted.get()():
        raise asyncio.CancelledError("nobody waits for it")
