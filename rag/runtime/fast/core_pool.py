"""One single-threaded worker per core: independent batches run side by side without meeting at barriers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["CorePool"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class CorePool:
    """Runs torch work on `workers` threads, each of which computes with one thread of its own.

    Splitting every operation over all cores makes them wait for each other some hundred times per batch;
    giving each core whole batches does not, and what a core works on stays in its cache.

    Args:
        workers: number of threads; default: torch's intra-op thread count.

    Example:
        >>> with CorePool(2) as pool:
        ...     list(pool.map(lambda n: n * n, [1, 2, 3]))
        [1, 4, 9]
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or torch.get_num_threads()
        callers_threads = torch.get_num_threads()
        ready = threading.Barrier(self.workers + 1)
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="core")
        for _ in range(self.workers):
            self._pool.submit(_begin, ready)
        ready.wait()
        # The thread count is kept per thread, but what new threads start with is global: put it back.
        torch.set_num_threads(callers_threads)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of `items`; the first exception stops the rest and is raised here."""
        futures: list[Future[Result]] = [self._pool.submit(function, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Wait for running work and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> CorePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _begin(ready: threading.Barrier) -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread takes over the global count at its first question: ask while it is 1
    ready.wait()
