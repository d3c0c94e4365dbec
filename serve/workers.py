"""Several server processes on one address.

Each opens the index by itself; they share the pages of its memory-mapped files. The first process starts the
others, starts one anew that dies, and hands signals on.
"""

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rag.core.errors import RagError, ResourceError
from rag.core.log import get_logger, setup_logging
from serve.settings import ServeSettings
from serve.siblings import Siblings

log = get_logger(__name__)
_MOST_EXITS, _EXITS_WITHIN_S = 3, 60.0  # more exits than this in this time, and the server gives up
ServeOne = Callable[[ServeSettings, socket.socket, Siblings, bool], None]


def run_workers(settings: ServeSettings, listener: socket.socket, serve_one: ServeOne) -> None:
    """Serve with `settings.workers` processes until SIGTERM or SIGINT; one gets SIGHUP and tells the others.

    Args:
        serve_one: serves in one process until a stop signal; the flag says whether it first opens the index.

    Raises:
        RagError: a worker could not open the index.
        ResourceError: workers die again and again.
    """
    with tempfile.TemporaryDirectory(prefix="rag-workers-") as folder, listener:
        _Workers(settings, listener, serve_one, Path(folder)).run()


class _Workers:
    def __init__(
        self, settings: ServeSettings, listener: socket.socket, serve_one: ServeOne, folder: Path
    ) -> None:
        self.settings, self.listener, self.serve_one, self.folder = settings, listener, serve_one, folder
        self.processes: dict[int, Any] = {}
        self.errors: dict[int, Connection] = {}
        self.is_stopping = False

    def run(self) -> None:
        exits: list[float] = []
        signals = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._forward_signal)
        with handled(signals), _threads_of_each(self.settings.workers):
            for number in range(self.settings.workers):
                self._start(number)
            try:
                while self.processes:
                    wait([process.sentinel for process in self.processes.values()])
                    for number in [n for n, process in self.processes.items() if not process.is_alive()]:
                        self._handle_exit(number, exits)
            except BaseException:
                self._stop()
                raise

    def _start(self, number: int, *, is_restart: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.errors[number], theirs = context.Pipe(duplex=False)
        siblings = Siblings(self.folder / f"{number}.sock")
        given = (self.serve_one, self.settings, self.listener, siblings, is_restart, theirs)
        self.processes[number] = process = context.Process(target=_serve, args=given, name=f"worker-{number}")
        process.start()
        theirs.close()

    def _handle_exit(self, number: int, exits: list[float]) -> None:
        """Handle the end of a process; start it again unless it was told to stop."""
        code = self.processes.pop(number).exitcode
        with suppress(EOFError):
            kind, message, hint = self.errors[number].recv()
            raise kind(message, hint=hint)
        if self.is_stopping:
            return
        now = time.monotonic()
        exits[:] = [*(before for before in exits if now - before < _EXITS_WITHIN_S), now]
        if len(exits) > _MOST_EXITS:
            raise ResourceError(
                f"{len(exits)} workers ended in {_EXITS_WITHIN_S:.0f} s, the last with exit code {code}",
                hint="the log above may say why; a code of -9 often means too little memory: fewer --workers",
            )
        log.error("a worker ended and is started anew", extra={"worker": number, "exit_code": code})
        self._start(number, is_restart=True)

    def _stop(self) -> None:
        self.is_stopping = True
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(self.settings.drain_timeout_s + 5)
            process.kill()

    def _forward_signal(self, number: int, _: Any) -> None:
        """Send SIGHUP to one process, which tells the others, or SIGTERM to all."""
        chosen = list(self.processes.values())
        if number == signal.SIGHUP:
            chosen = chosen[:1]
        else:
            self.is_stopping, number = True, signal.SIGTERM
        for process in chosen:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


@contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    """Handle signals, by their numbers, until the `with` block ends."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def _threads_of_each(workers: int) -> Iterator[None]:
    """Give each process its share of the cores, unless the environment says how many threads to use."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    os.environ.setdefault(name, str(max(1, len(os.sched_getaffinity(0)) // workers)))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _serve(
    serve_one: ServeOne,
    settings: ServeSettings,
    listener: socket.socket,
    siblings: Siblings,
    is_restart: bool,
    errors: Connection,
) -> None:
    """The life of one worker."""
    os.setpgid(0, 0)  # Ctrl-C reaches the first process alone, which forwards it
    setup_logging(settings.log_level, json_lines=settings.log_json, is_server=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        serve_one(settings, listener, siblings, is_restart)
    except RagError as error:
        errors.send((type(error), error.message, error.hint))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
