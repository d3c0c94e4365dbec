"""What uvicorn's connections lack: a deadline for the headers of a request, and a limit on their
number.
"""

import asyncio
import logging
import resource
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rag.core.log import get_logger

log = get_logger(__name__)
_HEADERS_S = 15.0
_QUIET_S = 60.0


def most_connections() -> int:
    """Connections of this process that leave descriptors for the files of indexes and for
    converters.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return descriptors - min(320, descriptors // 2)


class Connections:
    """The open connections of a server.

    Attributes:
        open: all of them.
        idle: those without a request under way, that without one for longest first.
    """

    def __init__(self) -> None:
        self.open = set[GuardedProtocol]()
        self.idle = dict[GuardedProtocol, None]()

    def protocol(self, *, app_state: dict[str, Any], **given: Any) -> "GuardedProtocol":
        """Make a protocol; uvicorn calls this for each connection."""
        return GuardedProtocol(self, app_state, given)

    def tracked(self, app: ASGIApp) -> ASGIApp:
        """The application, which tells its connection when a request begins and ends."""

        async def tracked_app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            connection: GuardedProtocol = scope["state"]["connection"]
            connection.begin_request()
            try:
                await app(scope, receive, send)
            finally:
                connection.end_request()

        return tracked_app

    def make_room(self) -> None:
        """Close the connection that is idle for longest if there are too many."""
        if len(self.open) > most_connections() and self.idle:
            log.warning("a connection was closed to make room; %d are open", len(self.open))
            oldest = next(iter(self.idle))
            # Removed before it is lost, so that another connection is the next to close.
            self.remove(oldest)
            oldest.transport.abort()

    def remove(self, connection: "GuardedProtocol") -> None:
        """Forget a connection."""
        self.open.discard(connection)
        self.idle.pop(connection, None)


class GuardedProtocol(asyncio.Protocol):
    """Passes what happens on a connection to uvicorn's HTTP/1.1, and watches the time."""

    transport: asyncio.Transport

    def __init__(
        self, connections: Connections, app_state: dict[str, Any], given: dict[str, Any]
    ) -> None:
        self._connections = connections
        self._http = H11Protocol(app_state={**app_state, "connection": self}, **given)
        self._n_requests = 0  # under way
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room and wait for the first request."""
        self.transport = transport
        self._http.connection_made(transport)
        self._connections.open.add(self)
        self._wait()
        self._connections.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._connections.remove(self)
        self._stop_deadline()
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle a piece of a request."""
        try:
            self._http.data_received(data)
        except h11.LocalProtocolError:
            # The request is malformed, and the client has a response already.
            self.transport.close()
        if self._n_requests == 0:
            self._wait()

    def eof_received(self) -> None:
        """Handle the end of what the client sends."""
        self._http.eof_received()

    def pause_writing(self) -> None:
        """Stop sending until the client has read."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """Send again."""
        self._http.resume_writing()

    def begin_request(self) -> None:
        """The headers of a request are there."""
        self._n_requests += 1
        self._stop_deadline()
        self._connections.idle.pop(self, None)

    def end_request(self) -> None:
        """A response is complete; uvicorn closes the connection if nothing more comes."""
        self._n_requests -= 1
        if self._n_requests == 0 and self in self._connections.open:
            self._connections.idle[self] = None

    def _wait(self) -> None:
        """Wait for the rest of the headers."""
        self._connections.idle[self] = None
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(_HEADERS_S, self._close_late)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_late(self) -> None:
        log.warning("a connection was closed whose headers did not arrive within %g s", _HEADERS_S)
        self.transport.close()


class OncePerMinute(logging.Filter):
    """Drops lines that came in the minute before: clients can cause those about connections at
    will.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record."""
        is_new = record.created - self._last_s.get(record.msg, 0.0) >= _QUIET_S
        if is_new:
            self._last_s[record.msg] = record.created
        return is_new


def quieten_connections() -> None:
    """Log repeated messages about connections once per minute."""
    quiet = OncePerMinute()
    for name in ("asyncio", "uvicorn.error", __name__):
        logging.getLogger(name).addFilter(quiet)
