"""One single-threaded worker per core: independent batches run in parallel without barriers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class CorePool:
    """Runs torch work on as many threads as torch uses, each of which computes single-threaded.

    Splitting every operation over all cores makes them wait for each other some hundred times per batch;
    giving each core whole batches does not, and its data stay in the core's cache.

    The threads start at the first `map`, and again at the next one after `close`.

    Example:
        >>> list(CorePool().map(lambda n: n * n, [1, 2, 3]))
        [1, 4, 9]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of `items`; the first exception stops the rest and is raised here."""
        with self._lock:
            if self._pool is None:
                count = torch.get_num_threads()
                self._pool, ready = ThreadPoolExecutor(count), threading.Barrier(count + 1)
                for _ in range(count):
                    self._pool.submit(_begin, ready)
                ready.wait()
                # torch keeps the count per thread, but the start value of new threads is global: restore it.
                torch.set_num_threads(count)
            return self._pool.map(function, items)

    def close(self) -> None:
        """Wait for running work and stop the threads."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None


def _begin(ready: threading.Barrier) -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread adopts the global count when it first reads it: read it while it is 1
    ready.wait()
