"""What uvicorn's connections lack: a deadline for the headers of a request, and a limit on their
number.
"""

import asyncio
import logging
import resource
import time

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rag.core.log import get_logger

log = get_logger(__name__)
_HEADERS_S = 15.0
_QUIET_S = 60.0
_REPEATED = ("socket.accept()", "Invalid HTTP request", "a connection was closed")
ACCEPTED_AT_ONCE = 32  # some hundred are open beyond the limit before the first of them is closed
BACKLOG = 1024  # connections that the system keeps until they are accepted


def most_connections() -> int:
    """Connections of this process that leave descriptors for the files of indexes and for
    converters.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return descriptors - min(320, descriptors // 2)


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for headers; of too many connections the one idle for longest is
    closed.
    """

    _due: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room and wait for the first request."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > most_connections():
            log.warning("a connection was closed to make room; %d are open", len(self.connections))
            idle = [
                other
                for other in self.connections
                if isinstance(other, GuardedProtocol) and other._is_idle
            ]
            oldest = min(idle, key=lambda other: other._idle_since)  # perhaps this one
            self.connections.discard(
                oldest
            )  # now, before it is lost, so that the next one is another
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._due is not None:
            self._due.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle a piece of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Tell the client that its request is malformed, unless it has a response already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Begin to wait for headers, or end to; uvicorn itself closes connections that send nothing
        more.
        """
        if not self._is_idle:
            if self._due is not None:
                self._due.cancel()
            self._due = None
        elif self._due is None and self.timeout_keep_alive_task is None:
            self._due = self.loop.call_later(_HEADERS_S, self._close_late)
        self._idle_since = time.monotonic()

    def _close_late(self) -> None:
        log.warning("a connection was closed whose headers did not arrive within %g s", _HEADERS_S)
        self.transport.close()


class OncePerMinute(logging.Filter):
    """Drops lines about connections, which clients can cause at will, that came in the minute
    before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record."""
        kind = next((prefix for prefix in _REPEATED if str(record.msg).startswith(prefix)), None)
        if kind is None or record.created - self._last_s.get(kind, 0.0) >= _QUIET_S:
            self._last_s[str(kind)] = record.created
            return True
        return False


def quieten_connections() -> None:
    """Log repeated messages about connections once per minute."""
    quiet = OncePerMinute()
    for name in ("asyncio", "uvicorn.error", __name__):
        logging.getLogger(name).addFilter(quiet)
