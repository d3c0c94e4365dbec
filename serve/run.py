"""Run the server until a stop signal."""

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead
from tqdm import tqdm

from rag.core.errors import ConfigError, ResourceError
from rag.core.log import setup_logging
from rag.core.manifest import read_manifest
from serve.app import RUN_PREFIX, create_app
from serve.connections import Connections, quieten_connections
from serve.metrics import SHARED_FOLDER
from serve.settings import ServeSettings
from serve.shelves import open_pipeline
from serve.workers import CANNOT_START, Workers, handling

# For an idle connection: proxies keep theirs for 60 s, and one that is closed costs a request.
_KEEP_ALIVE_S = 75
_LEAVING_S = 30.0  # longest time that a worker needs after its last request
_SIGNS_S = 1  # between two signs of life of a worker
BACKLOG = 1024  # connections that the system keeps until they are accepted
# Some hundred are open beyond the limit before the first of them is closed.
_ACCEPTED_AT_ONCE = 32
_LOCK = "run.lock"


def run_server(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests; SIGHUP opens the index again.

    Requests that are left after `drain_timeout_s` are refused; their threads may go on, see
    `leave`.

    Raises:
        ConfigError: the settings name no index.
        ResourceError: the server cannot listen on the address, or a worker cannot open the index.
        RagError: the index could not be opened.
    """
    _set_up_logging()
    given = ("index", "shelf", "shelves")
    if settings.model_fields_set.isdisjoint(given):
        hint = "give {index}, or several by {shelf} or {shelves}"
        raise ConfigError("there is no index to serve", hint=hint, arguments=given)
    if not settings.has_shelves:
        read_manifest(settings.index)
    with bind(settings.host, settings.port) as listener, run_folder() as folder:
        print(f"listening on {_url(listener)}", flush=True)
        if settings.workers == 1:
            _serve(settings, listener, folder)
        else:
            _supervise(settings, listener, folder)


@contextmanager
def run_folder() -> Iterator[Path]:
    """A temporary folder of this run; those of servers that were killed are deleted."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{RUN_PREFIX}*"):
        with suppress(OSError), (left / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=RUN_PREFIX) as name:
        folder = Path(name)
        unlocked = folder / f".{_LOCK}"
        with unlocked.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Only now: another server that starts deletes a folder whose lock it gets.
            unlocked.rename(folder / _LOCK)
            yield folder


def _serve(settings: ServeSettings, listener: socket.socket, folder: Path) -> None:
    """Serve in this process; SIGHUP opens index and models anew."""
    failures: list[Exception] = []

    def stop_on(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(settings, open_pipeline, on_load_error=stop_on, folder=folder)
    server = _server(settings, app)

    async def serve_and_reload() -> None:
        reloads = set[asyncio.Task[None]]()
        loop = asyncio.get_running_loop()

        def reload() -> None:
            # The loop itself holds tasks weakly.
            task = loop.create_task(app.state.engine.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
        await server.serve([_few_at_once(listener)])

    with _stopping(server):
        asyncio.run(serve_and_reload())
    for error in failures:
        raise error


def _supervise(settings: ServeSettings, listener: socket.socket, folder: Path) -> None:
    """Serve with several processes; each opens the index by itself, and they share its
    memory-mapped files.
    """
    metrics = folder / "metrics"
    metrics.mkdir()
    n_threads = max(1, len(os.sched_getaffinity(0)) // settings.workers)
    os.environ.setdefault("OMP_NUM_THREADS", str(n_threads))
    os.environ[SHARED_FOLDER] = str(metrics)
    serve = partial(_work, settings, listener, folder)
    mark_dead = partial(mark_process_dead, path=str(metrics))
    ends_within_s = settings.drain_timeout_s + _LEAVING_S
    try:
        Workers(
            serve, settings.workers, mark_dead, on_stop=listener.close, ends_within_s=ends_within_s
        ).run()
    finally:
        del os.environ[SHARED_FOLDER]


def _work(
    settings: ServeSettings, listener: socket.socket, folder: Path, signs: Connection
) -> None:
    """Serve in the process of a worker, which ends with the process that started it."""
    _set_up_logging()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # its own would be a semaphore, of which a tracker warns in plain lines when the worker is gone
    tqdm.set_lock(threading.RLock())
    app = create_app(
        settings,
        on_load_error=lambda error: leave(CANNOT_START),
        opens_first=True,
        folder=folder,
    )

    async def give_sign() -> None:
        try:
            signs.send_bytes(b".")
        except BrokenPipeError:
            server.should_exit = True

    server = _server(settings, app, callback_notify=give_sign, timeout_notify=_SIGNS_S)
    with _stopping(server):
        asyncio.run(server.serve([_few_at_once(listener)]))
    leave()


def _server(settings: ServeSettings, app: FastAPI, **more: Any) -> uvicorn.Server:
    connections = Connections()
    config = uvicorn.Config(
        connections.tracked(app),
        http=connections.protocol,  # type: ignore[arg-type]  # is called as a class is
        ws="none",
        backlog=_ACCEPTED_AT_ONCE,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        **more,
    )
    return uvicorn.Server(config)


def _stopping(server: uvicorn.Server) -> AbstractContextManager[None]:
    """Stop the server at a signal; after it has stopped, uvicorn raises the signal again, which
    then changes nothing.
    """

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    return handling({signal.SIGTERM: stop, signal.SIGINT: stop})


class _Listener(socket.socket):
    """Keeps many connections waiting, of which asyncio accepts as many at once as it asks for."""

    def listen(self, backlog: int = BACKLOG) -> None:
        """Listen with a queue of another length than uvicorn's."""
        super().listen(BACKLOG)


def _few_at_once(listener: socket.socket) -> _Listener:
    # Not a duplicate: while one is open, the system takes connections that no one will answer.
    return _Listener(fileno=listener.detach())


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
            hint="stop what uses it, or choose another {port} or {host}",
            arguments=("port", "host"),
        ) from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
