"""Keep several processes running that serve one address."""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from rag.core.errors import ResourceError
from rag.core.log import get_logger

log = get_logger(__name__)
CANNOT_START = 3  # exit code of a worker that would fail again
_HANGS_AFTER_S = 60  # without a sign of life
_LOOK_S = 0.5
SignalHandler = Callable[[int, object], object]


@contextmanager
def handling(handlers: Mapping[signal.Signals, SignalHandler | signal.Handlers]) -> Iterator[None]:
    """Handle signals inside the block; it has to be entered on the main thread."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Worker:
    """A process that serves.

    Args:
        serve: what it does; called in the process with a pipe, into which it writes signs of life
            once it accepts requests, at least every few seconds.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._signs, writer = context.Pipe(duplex=False)
        self.process = context.Process(target=serve, args=(writer,))
        self.process.start()
        writer.close()
        self._last_sign_s: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it has accepted requests."""
        return self._last_sign_s is not None

    def is_alive(self) -> bool:
        """Whether it runs; a process that stopped giving signs of life does not."""
        if not self.process.is_alive():
            return False
        with suppress(EOFError):
            while self._signs.poll():
                self._signs.recv_bytes()
                self._last_sign_s = time.monotonic()
        return self._last_sign_s is None or time.monotonic() - self._last_sign_s < _HANGS_AFTER_S


class Workers:
    """Starts a worker anew that dies, and ends all workers if a worker cannot start.

    Args:
        serve: what each worker does, see `Worker`.
        on_end: called with the process id of each worker that has ended.
        on_stop: called before the workers are asked to end.
        ends_within_s: a worker that is asked to end, and runs for longer, is killed.
    """

    def __init__(
        self,
        serve: Callable[[Connection], None],
        number: int,
        on_end: Callable[[int], object],
        *,
        on_stop: Callable[[], object] = lambda: None,
        ends_within_s: float,
    ) -> None:
        self._on_stop = on_stop
        self._serve = serve
        self._number = number
        self._on_end = on_end
        self._ends_within_s = ends_within_s
        self._stops = threading.Event()
        self._is_reload_asked = False

    def run(self) -> None:
        """Keep the workers running until SIGTERM or SIGINT; SIGHUP replaces them one after another.

        Raises:
            ResourceError: a worker could not open the index.
        """
        handlers: dict[signal.Signals, SignalHandler] = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._ask_reload,
        }
        with handling(handlers):
            workers = [Worker(self._serve) for _ in range(self._number)]
            try:
                while not self._stops.wait(_LOOK_S):
                    if self._is_reload_asked:
                        self._is_reload_asked = False
                        self._replace_all(workers)
                    self._restart_dead(workers)
            finally:
                self._on_stop()
                for worker in workers:
                    worker.process.terminate()
                for worker in workers:
                    self._end(worker)

    def _stop(self, number: int, frame: object) -> None:
        self._stops.set()

    def _ask_reload(self, number: int, frame: object) -> None:
        self._is_reload_asked = True

    def _restart_dead(self, workers: list[Worker]) -> None:
        for number, worker in enumerate(workers):
            if worker.is_alive() or self._stops.is_set():
                continue
            worker.process.kill()
            self._end(worker)
            if worker.process.exitcode == CANNOT_START:
                raise ResourceError(
                    "a worker could not open the index", hint="the log above has the reason"
                )
            log.warning("worker %s died and is started anew", worker.process.pid)
            workers[number] = Worker(self._serve)

    def _replace_all(self, workers: list[Worker]) -> None:
        """Replace the workers, one after another, by workers that accept requests already."""
        for number, worker in enumerate(workers):
            successor = Worker(self._serve)
            while successor.is_alive() and not successor.is_ready and not self._stops.is_set():
                time.sleep(_LOOK_S)
            if not successor.is_ready:
                successor.process.kill()
                self._end(successor)
                log.error("a new worker could not start; worker %s stays", worker.process.pid)
                return
            workers[number] = successor
            worker.process.terminate()
            self._end(worker)

    def _end(self, worker: Worker) -> None:
        worker.process.join(self._ends_within_s)
        if worker.process.is_alive():
            log.error("worker %s does not end and is killed", worker.process.pid)
            worker.process.kill()
            worker.process.join()
        assert worker.process.pid is not None
        self._on_end(worker.process.pid)
