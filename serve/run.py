"""Run the server until a stop signal."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI

from rag.core.errors import ConfigError, RagError, ResourceError
from rag.core.log import setup_logging
from serve.app import create_app
from serve.engine import Engine
from serve.service import OpenService, open_pipeline
from serve.settings import ServeSettings
from serve.siblings import Siblings
from serve.workers import handled, run_workers

_KEEP_ALIVE_S = 75  # for an idle connection: proxies keep theirs for 60 s, and a closed one costs a request


def run_server(settings: ServeSettings, *, open_service: OpenService = open_pipeline) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests; SIGHUP opens every index again.

    If requests are left after `drain_timeout_s`, or the index is still being opened, the process exits at
    once.

    Args:
        open_service: opens the index in the settings, while the server starts and at each reload; several
            workers open it as `open_pipeline` does.

    Raises:
        ResourceError: the server cannot listen on the address, or its workers die.
        RagError: the index could not be opened.
    """
    setup_logging(settings.log_level, json_lines=settings.log_json, is_server=True)
    listener = bind(settings.host, settings.port)
    if settings.workers == 1:
        serve_one(settings, listener, open_service=open_service)
    else:
        print(f"listening on {_url(listener)}", flush=True)
        run_workers(settings, listener, serve_one)


def serve_one(
    settings: ServeSettings,
    listener: socket.socket,
    siblings: Siblings | None = None,
    opens_first: bool = False,
    *,
    open_service: OpenService = open_pipeline,
) -> None:
    """Serve in this process; see `run_server`.

    Args:
        siblings: the other workers, if there are any.
        opens_first: whether connections are accepted only when the index is open.
    """
    failures: list[Exception] = []

    def stop_on(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(
        settings, open_service=open_service, on_load_error=stop_on, siblings=siblings, opens_first=opens_first
    )
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_keep_alive=_KEEP_ALIVE_S
    )
    server = _Server(config)
    server.engine = app.state.engine
    if siblings is None:
        print(f"listening on {_url(listener)}", flush=True)
    with _signals(app, server), listener:
        asyncio.run(_serve(server, app, listener))
    for error in failures:
        if isinstance(error, RagError):
            raise error
        folders = " or ".join(map(str, settings.indexes.values()))
        raise ResourceError(
            f"the index in {folders} could not be opened ({type(error).__name__})",
            hint="the log above has the reason",
        ) from error


class _Server(uvicorn.Server):
    """Keeps listening while the engine finishes accepted requests, to tell new ones of the shutdown."""

    engine: Engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        deadline = time.monotonic() + self.engine.settings.drain_timeout_s
        closing = asyncio.create_task(self.engine.close(), name="rag-close")
        while not (closing.done() or self.force_exit or time.monotonic() > deadline):
            await asyncio.wait({closing}, timeout=0.1)
        # the remaining requests get the rest of the time, and one more second for sending
        self.config.timeout_graceful_shutdown = max(1, round(deadline - time.monotonic()))
        await super().shutdown(sockets)


async def _serve(server: _Server, app: FastAPI, listener: socket.socket) -> None:
    app.state.loop = asyncio.get_running_loop()
    await server.serve(sockets=[listener])
    if not server.engine.is_at_rest:
        _leave()


def _leave() -> None:
    """Exit the process at once: a normal exit would wait for its threads."""
    logging.shutdown()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on host and port.

    Raises:
        ConfigError: the host is not a valid name.
        ResourceError: the port is taken, not allowed, or the host has no such address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except UnicodeError as error:  # an empty or overlong part between two dots
        raise ConfigError(f"host {host!r} is not a name", hint="use 127.0.0.1 or 0.0.0.0") from error
    except socket.gaierror as error:
        raise ResourceError(
            f"host {host!r} has no address ({error})", hint="use 127.0.0.1 or 0.0.0.0"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message, hint = f"port {port} on {host} is in use", "stop it, or choose another --port"
        elif error.errno in (errno.EACCES, errno.EPERM):
            message, hint = f"port {port} on {host} is not allowed for this user", "choose a port above 1023"
        else:
            message, hint = f"cannot listen on {host}:{port} ({error.strerror})", "choose another address"
        raise ResourceError(message, hint=hint) from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _signals(app: FastAPI, server: _Server) -> Iterator[None]:
    """Handle signals: stop signals lead to a normal return, SIGHUP to a reload."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_hangup(number: int, frame: Any) -> None:
        loop: asyncio.AbstractEventLoop | None = getattr(app.state, "loop", None)
        if loop is None:
            return  # the index is not open yet, so there is nothing to reload
        loop.call_soon_threadsafe(lambda: loop.create_task(server.engine.reload_all(), name="rag-reload"))

    def on_stop(number: int, frame: Any) -> None:
        server.should_exit = True  # before the server's own handlers are in place, or raised again after them

    with handled({signal.SIGINT: on_stop, signal.SIGTERM: on_stop, signal.SIGHUP: on_hangup}):
        yield
