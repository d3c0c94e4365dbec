"""Threads for work that would hold up the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Threads:
    """Runs functions on threads: short ones, and a few long ones beside them.

    Attributes:
        writing: held while an index is written: the writers share an encoder.
    """

    def __init__(self) -> None:
        self._reads = ThreadPoolExecutor(thread_name_prefix="rag-read")
        self._changes = ThreadPoolExecutor(2, thread_name_prefix="rag-change")
        self.writing = asyncio.Lock()

    async def in_thread(self, function: Callable[..., Result], *args: object) -> Result:
        """Call a short `function` on a thread; it runs to its end even if the caller is
        cancelled.
        """
        return await asyncio.wrap_future(self._reads.submit(function, *args))

    async def in_background(self, function: Callable[..., Result], *args: object) -> Result:
        """The same for a long one, which opens or writes an index; it takes no thread from the
        short ones.
        """
        return await asyncio.wrap_future(self._changes.submit(function, *args))
