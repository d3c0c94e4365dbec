"""Middleware for every request: id, log line, metrics, security headers, and unhandled exceptions."""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag.core.log import get_logger
from serve.errors import ApiError, error_response, shutting_down
from serve.metrics import ServerMetrics

log = get_logger(__name__)
access_log = get_logger("serve.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class RequestContext:
    """Outermost layer of the application.

    A valid `X-Request-ID` is kept, otherwise one is made; it is returned, logged, and part of every error. An
    unhandled exception is logged with its traceback and answered with a plain 500; a request that is still
    running when the server stops is answered with 503.

    Args:
        routes: further paths that log and metrics may name, beside those of the application.
        inner: the next layer, if these two answers need its headers too.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: ServerMetrics,
        routes: Sequence[BaseRoute],
        inner: Callable[[ASGIApp], ASGIApp] | None = None,
    ) -> None:
        self.metrics, self.routes = metrics, routes
        self.inner = inner or (lambda app: app)
        self.app = self.inner(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        state: dict[str, Any] = scope.setdefault("state", {})
        request_id = state["request_id"] = _request_id(Headers(scope=scope).get("x-request-id"))
        state["log_fields"] = {}
        status = 0

        async def send_wrapped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers.setdefault("cache-control", "no-store")
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, send_wrapped)
        except asyncio.CancelledError:  # the server stops and waits no longer
            if status == 0:
                response = self.inner(error_response(shutting_down(), scope))
                await response(scope, receive, send_wrapped)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id})
            if status == 0:
                error = ApiError(
                    500, "internal_error", "the server failed to answer this request",
                    hint="try again; the server's log has the reason under this request id",
                )  # fmt: skip
                await self.inner(error_response(error, scope))(scope, receive, send_wrapped)
            else:  # part of the response is sent: break the connection, so that it does not look complete
                raise
        finally:
            self.metrics.in_flight.dec()
            self._finish(scope, status or 499, time.perf_counter() - started)

    def _finish(self, scope: Scope, status: int, duration_s: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        route = self._path_of(scope)
        self.metrics.request_finished(method, route, status, duration_s)
        client = scope.get("client")
        access_log.info(
            "%s %s %d", method, route, status,
            extra={
                "request_id": scope["state"]["request_id"],
                "method": method,
                "route": route,
                "status": status,
                "duration_ms": round(duration_s * 1000.0, 2),
                "client": client[0] if client else None,
                **scope["state"]["log_fields"],
            },
        )  # fmt: skip

    def _path_of(self, scope: Scope) -> str:
        """The route's path with its placeholders, so that clients cannot create new labels."""
        for route in (*self.routes, *scope["app"].routes):  # also where a layer answered before the router
            if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "unmatched"


def _request_id(given: str | None) -> str:
    return given if given is not None and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
