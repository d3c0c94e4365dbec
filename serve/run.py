"""Run the server until a stop signal."""

import asyncio
import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead
from tqdm import tqdm
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from rag.core.errors import ResourceError
from rag.core.log import setup_logging
from rag.core.manifest import read_manifest
from serve.app import RUN_PREFIX, create_app
from serve.connections import ACCEPTED_AT_ONCE, BACKLOG, GuardedProtocol, quieten_connections
from serve.metrics import SHARED_FOLDER
from serve.settings import ServeSettings
from serve.shelves import open_pipeline

_KEEP_ALIVE_S = (
    75  # for an idle connection: proxies keep theirs for 60 s, and a closed one costs a request
)
_HANGS_AFTER_S = 60  # a worker that gives no sign of life for so long is started anew
_LOCK = "run.lock"


def run_server(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests; SIGHUP opens the index again.

    Requests that are left after `drain_timeout_s` are refused; their threads may go on, see
    `leave`.

    Raises:
        ResourceError: the server cannot listen on the address, or a worker cannot open the index.
        RagError: the index could not be opened.
    """
    _set_up_logging()
    read_manifest(settings.index)
    with bind(settings.host, settings.port) as listener, run_folder() as folder:
        print(f"listening on {_url(listener)}", flush=True)
        serve = _serve if settings.workers == 1 else _supervise
        serve(settings, listener, folder)


@contextmanager
def run_folder() -> Iterator[Path]:
    """A temporary folder of this run; those of servers that were killed are deleted."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{RUN_PREFIX}*"):
        with suppress(OSError), (left / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=RUN_PREFIX) as folder,
        (Path(folder) / _LOCK).open("wb") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(folder)


def _config(settings: ServeSettings, app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=GuardedProtocol,
        backlog=ACCEPTED_AT_ONCE,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        **more,
    )


def _serve(settings: ServeSettings, listener: socket.socket, folder: Path) -> None:
    """Serve in this process."""
    failures: list[Exception] = []

    def stop_on(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(settings, open_pipeline, on_load_error=stop_on, folder=folder)
    server = _Server(_config(settings, app))
    server.reload = app.state.engine.reload
    server.run([listener])
    for error in failures:
        raise error


class _Server(uvicorn.Server):
    """Returns after a stop signal, where uvicorn's own would raise it again; SIGHUP reloads."""

    reload: Callable[[], Coroutine[Any, Any, None]]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept few connections at once, while many may wait."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as long as the event loop runs."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(self.reload()))
        yield


def _supervise(settings: ServeSettings, listener: socket.socket, folder: Path) -> None:
    """Serve with several processes; each opens the index by itself, and they share its
    memory-mapped files.

    SIGHUP replaces them one after another, each once its successor has opened the index.
    """
    config = _config(
        settings,
        partial(_worker_app, settings, folder),
        factory=True,
        workers=settings.workers,
        timeout_worker_healthcheck=_HANGS_AFTER_S,
    )
    metrics = folder / "metrics"
    metrics.mkdir()
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // settings.workers))
    )
    os.environ[SHARED_FOLDER] = str(metrics)
    try:
        workers = _Workers(config, [listener])
        workers.run()
    finally:
        del os.environ[SHARED_FOLDER]
    if workers.has_failed:
        raise ResourceError(
            "a worker could not open the index", hint="the log above has the reason"
        )


class _Workers(Multiprocess):
    """Starts a worker anew that dies, and ends all if one cannot open the index."""

    has_failed = False

    def keep_subprocess_alive(self) -> None:
        """Look after the workers once; stop signals are handled before."""
        was_stopped, before = self.should_exit.is_set(), {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        self.sockets[0].listen(BACKLOG)  # a worker that starts has made it smaller
        self.has_failed = self.has_failed or (self.should_exit.is_set() and not was_stopped)
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid, os.environ[SHARED_FOLDER])


def _worker_app(settings: ServeSettings, folder: Path) -> FastAPI:
    """The application of one worker, made in its process."""
    _set_up_logging()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Finalize(None, leave, exitpriority=0)
    # its own would be a semaphore, of which a tracker warns in plain lines when the worker is gone
    tqdm.set_lock(threading.RLock())
    return create_app(
        settings,
        on_load_error=lambda error: leave(STARTUP_FAILURE),
        opens_first=True,
        folder=folder,
    )


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _set_up_logging() -> None:
    setup_logging(json_lines=True)
    quieten_connections()


def leave(code: int = 0) -> None:
    """Exit the process at once: a normal exit would wait for its threads, which may still be
    reading.
    """
    logging.shutdown()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on host and port.

    Raises:
        ResourceError: the port is taken or not allowed, or there is no such host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # which finds out that it is TCP, so that asyncio sends small answers without delay
        return socket.socket(fileno=listener.detach())
    except (OSError, UnicodeError) as error:  # also of an empty or overlong part of a name
        reason = getattr(error, "strerror", None) or str(error)
        raise ResourceError(
            f"cannot listen on port {port} of {host!r}: {reason}",
            hint="stop what uses it, or choose another --port or --host",
        ) from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
