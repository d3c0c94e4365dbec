"""An asyncio micro-batcher in front of worker threads: questions that arrive together run
together.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rag.core.log import get_logger
from rag.core.wanted import wanted_while
from serve.errors import refused, shutting_down
from serve.metrics import ServerMetrics

log = get_logger(__name__)
_RETRY_S = 10  # until a full queue has room again
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class ItemFailed(Exception):
    """An item failed; `number` is its position among those submitted with it, `__cause__` the
    reason.
    """

    def __init__(self, number: int, cause: BaseException) -> None:
        super().__init__(f"item {number} failed")
        self.number = number
        self.__cause__ = cause


@dataclass(slots=True, eq=False)
class _Entry(Generic[Key, Result]):
    key: Key
    number: int
    item: str
    future: asyncio.Future[tuple[Result, float]]
    queued_at: float = field(default_factory=time.monotonic)


class MicroBatcher(Generic[Key, Result]):
    """Collects items and runs them in batches on worker threads, by default on a single thread.

    An idle worker takes all waiting items at once, so a lone caller never waits. While it is busy,
    items queue up. When a batch has just finished, its clients are likely to send their next
    questions immediately: the next batch then waits for about as many items as were running, but
    never longer than `max_wait_s` after the worker became free. Only items with equal keys share a
    batch; the oldest goes first. If a batch fails, its items are run again one by one, so that one
    bad item fails alone.

    Args:
        run: `run(key, items) -> results`, one result or error per item; called on a worker thread.
        max_wait_s: longest time a free worker waits for a batch to fill up.
        workers: number of batches that run at a time.
        metrics: record the waiting items, and every batch with its size and seconds.

    Attributes:
        queue: items that wait.
        has_failed: whether it stopped by an error of its own, so that it will run nothing more.
    """

    def __init__(
        self,
        run: Callable[[Key, list[str]], Sequence[Result | BaseException]],
        *,
        max_size: int,
        max_wait_s: float,
        queue_size: int,
        workers: int = 1,
        metrics: ServerMetrics,
    ) -> None:
        self._run = run
        self._metrics = metrics
        self.max_size = max_size
        self._max_wait_s = max_wait_s
        self._queue_size = queue_size
        self.queue = deque[_Entry[Key, Result]]()
        self._changed = asyncio.Event()
        self.has_failed = False
        self._closing = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="rag-model")
        self._free = asyncio.Semaphore(workers)
        self._running = set[_Entry[Key, Result]]()
        self._n_expected = 1  # items of the next batch
        self._free_at = time.monotonic()  # when a worker was free

    def start(self) -> None:
        """Start dispatching; call it on the running event loop."""
        self._task = asyncio.create_task(self._dispatch_all())

    async def submit(self, key: Key, items: Sequence[str]) -> list[tuple[Result, float]]:
        """Run `items`, possibly in one batch with others' items; all are accepted or none.

        Cancelling this call removes its items from the queue if they have not started.

        Returns:
            Each result, and the seconds that its item waited before it ran.

        Raises:
            ApiError: 503: the queue is full, `close` was called, or it has failed.
            ItemFailed: `run` raised for an item; the first one that failed.
        """
        if self._closing:
            raise shutting_down()
        # A list may be longer than the queue, also where others wait.
        if len(self.queue) >= self._queue_size:
            raise refused("overloaded", "too many questions are waiting", _RETRY_S)
        loop = asyncio.get_running_loop()
        entries = [
            _Entry[Key, Result](key, number, item, loop.create_future())
            for number, item in enumerate(items)
        ]
        self._set_queue([*self.queue, *entries])
        self._changed.set()
        try:
            return await asyncio.gather(*(entry.future for entry in entries))
        finally:
            # After a failure, or if the call is cancelled, the other results are not needed.
            for entry in entries:
                entry.future.cancel()
            self._set_queue(entry for entry in self.queue if not entry.future.cancelled())

    async def close(self, timeout_s: float) -> bool:
        """Accept nothing new and finish what was accepted; True if all of it was finished in time.

        Items that are not finished after `timeout_s` fail with 503.
        """
        self._closing = True
        self._changed.set()
        try:
            await asyncio.wait_for(self._task, timeout_s)
            is_drained = not self.has_failed
        except TimeoutError:
            is_drained = False
        self._threads.shutdown(wait=is_drained, cancel_futures=True)
        return is_drained

    async def _dispatch_all(self) -> None:
        """Dispatch until closed; items that are left when that ends fail, for nothing runs them."""
        try:
            await self._dispatch()
        except Exception:
            log.exception("no question can be run any more")
            self.has_failed = True
            self._closing = True
        finally:
            for entry in (*self._running, *self.queue):
                if not entry.future.done():
                    entry.future.set_exception(shutting_down())
            self._set_queue(())

    async def _dispatch(self) -> None:
        async with asyncio.TaskGroup() as running:
            while True:
                await self._free.acquire()
                await self._wait_for(1)
                if not self.queue:
                    return  # closing, and drained when the running batches end
                left_s = self._free_at + self._max_wait_s - time.monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, left_s)):
                        await self._wait_for(self._n_expected)
                if self.queue:
                    running.create_task(self._run_batch(self._take()))
                else:
                    self._free.release()

    async def _wait_for(self, n_items: int) -> None:
        """Wait until so many items are queued, or the batcher closes."""
        while len(self.queue) < n_items and not self._closing:
            self._changed.clear()
            await self._changed.wait()

    def _take(self) -> list[_Entry[Key, Result]]:
        """Remove the oldest item and others with its key from the queue, up to `max_size`, to be
        run.
        """
        key = self.queue[0].key
        batch = [entry for entry in self.queue if entry.key == key][: self.max_size]
        self._running.update(batch)
        self._set_queue(entry for entry in self.queue if entry not in self._running)
        return batch

    def _set_queue(self, entries: Iterable[_Entry[Key, Result]]) -> None:
        n_before = len(self.queue)
        self.queue = deque(entries)
        self._metrics.queue_depth.inc(len(self.queue) - n_before)

    async def _run_batch(self, batch: list[_Entry[Key, Result]]) -> None:
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        outcomes = await loop.run_in_executor(self._threads, self._run_safely, batch)
        self._running.difference_update(batch)
        for entry, outcome in zip(batch, outcomes, strict=True):
            wait_s = started - entry.queued_at
            self._metrics.stage_seconds.labels("queue").observe(wait_s)
            if entry.future.done():
                continue
            if isinstance(outcome, BaseException):
                entry.future.set_exception(ItemFailed(entry.number, outcome))
            else:
                entry.future.set_result((outcome, wait_s))
        duration_s = time.monotonic() - started
        self._metrics.batch_size.observe(len(batch))
        self._metrics.stage_seconds.labels("batch").observe(duration_s)
        self._free_at = time.monotonic()
        self._n_expected = min(self.max_size, len(batch) + len(self.queue))
        self._free.release()

    def _run_safely(self, batch: list[_Entry[Key, Result]]) -> Sequence[Result | BaseException]:
        """Run the batch on the worker thread, or its items one by one if it fails; errors take a
        result's place.
        """
        try:
            with wanted_while(lambda: not all(entry.future.done() for entry in batch)):
                results = self._run(batch[0].key, [entry.item for entry in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(batch)} items gave {len(results)} results")
            return results
        except BaseException as error:
            # Also a panic of a library in Rust, or an exit: they would end the dispatcher.
            if len(batch) == 1 or isinstance(error, asyncio.CancelledError):
                return [error] * len(batch)
            fields = {"batch_size": len(batch), "error": type(error).__name__}
            log.warning("a batch failed, running its items one by one", extra=fields)
        gone = asyncio.CancelledError()
        return [gone if entry.future.done() else self._run_safely([entry])[0] for entry in batch]
