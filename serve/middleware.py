"""What every request passes before its route: id, log, metrics, API key, limits of its body."""

import asyncio
import functools
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag.core.log import get_logger
from serve.errors import ApiError, error_response, shutting_down
from serve.identity import People, Person
from serve.metrics import ServerMetrics
from serve.settings import ServeSettings

log = get_logger(__name__)
access_log = get_logger("serve.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MAX_BODY_BYTES = 256 * 1024
_MAX_LIST_BYTES = 4 << 20
_LISTS = ("/retrieve", "/rerank", "/v1/rerank")  # take many queries, or many texts
# Of the page, and for whoever operates the server: what these show, everybody may read.
_OPEN = ("/", "/docs", "/page.json", "/openapi.json", "/healthz", "/readyz", "/metrics")
_OPEN_FOLDER = "/static/"
_SECURITY_HEADERS = {
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


class Gate:
    """The only layer around the routes.

    What answers GET answers HEAD, without a body, and who uses a method that a path does not have
    is told all that it has.

    A valid `X-Request-ID` is kept, otherwise one is made; it is returned, logged, and part of every
    error. An unhandled exception is logged with its traceback and answered with a plain 500; a
    request that is still running when the server stops is answered with 503. All paths but those
    in `_OPEN` need an API key or a token where the server knows people; log and metrics name the
    person. Bodies are read whole, within limits of size and time.

    Args:
        routes: further paths that log and metrics may name, beside those of the application.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        metrics: ServerMetrics,
        routes: Sequence[BaseRoute],
    ) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics
        self.routes = routes
        self.people = People(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        state: dict[str, Any] = scope.setdefault("state", {})
        request_id = Headers(scope=scope).get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        state["request_id"] = request_id
        state["log_fields"] = {}
        # Before a mounted application changes the scope, and also if no route is reached.
        routes = self._routes_of(scope)
        # With its placeholders, so that clients cannot create new labels.
        path = routes[0].path if routes else "unmatched"
        is_head = scope["method"] == "HEAD"
        inner = scope
        if is_head:
            inner = {**scope, "method": "GET"}
        status = 0

        async def send_wrapped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers.setdefault("cache-control", "no-cache" if "etag" in headers else "no-store")
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if status == 405:
                    headers["allow"] = ", ".join(sorted(_methods_of(routes)))
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self._check(inner, receive, send_wrapped)
        except asyncio.CancelledError:
            # The server stops and waits no longer.
            if status != 0:
                raise
            await error_response(shutting_down(), scope)(scope, receive, send_wrapped)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id})
            if status != 0:
                # Part of the response is sent: the connection breaks, which tells the client.
                raise
            message = "the server failed to answer this request"
            hint = "try again; the server's log has the reason under this request id"
            error = ApiError(500, "internal_error", message, hint=hint)
            await error_response(error, scope)(scope, receive, send_wrapped)
        finally:
            self.metrics.in_flight.dec()
            self._finish(scope, path, status or 499, time.perf_counter() - started)

    def _finish(self, scope: Scope, route: str, status: int, duration_s: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        self.metrics.requests.labels(method, route, str(status)).inc()
        self.metrics.request_seconds.labels(route).observe(duration_s)
        client = scope.get("client")
        fields = {
            "request_id": scope["state"]["request_id"],
            "method": method,
            "route": route,
            "status": status,
            "duration_ms": round(duration_s * 1000.0, 2),
            "client": client[0] if client else None,
            **scope["state"]["log_fields"],
        }
        access_log.info("%s %s %d", method, route, status, extra=fields)

    def _routes_of(self, scope: Scope) -> list[Route | Mount]:
        """The routes of a path, by whatever method."""
        return [
            route
            for route in (*self.routes, *scope["app"].routes)
            if isinstance(route, Route | Mount) and route.matches(scope)[0] is not Match.NONE
        ]

    async def _check(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it to the application with its whole body."""
        try:
            headers = Headers(scope=scope)
            person = await self._person(scope["path"], headers)
            scope["state"]["person"] = person
            if self.settings.knows_people and person.name:
                scope["state"]["log_fields"]["key"] = person.name
            if scope["method"] == "GET":
                await self.app(scope, receive, send)
                return
            encoding = headers.get("content-encoding", "identity")
            if encoding.lower() != "identity":
                message = f"the body has the encoding {encoding[:40]!r}, expected none"
                hint = "send it as it is, without Content-Encoding"
                takes = {"Accept-Encoding": "identity", "Connection": "close"}
                raise ApiError(415, "unsupported_media_type", message, hint, takes)
            body = await self._read(self._most_bytes(scope["path"]), headers, receive)
        except ApiError as error:
            self.metrics.rejected.labels(error.code).inc()
            await error_response(error, scope)(scope, receive, send)
            return
        if body is None:
            return  # the client disconnected
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)

    async def _person(self, path: str, headers: Headers) -> Person:
        """Who sends a request; an unknown person has no name and may see open paths."""
        try:
            return await self.people.person(headers)
        except ApiError:
            if path in _OPEN or path.startswith(_OPEN_FOLDER):
                return Person("")
            raise

    def _most_bytes(self, path: str) -> int:
        if path == "/v1/documents":
            return self.settings.max_upload_bytes
        return _MAX_LIST_BYTES if path in _LISTS else _MAX_BODY_BYTES

    async def _read(self, limit: int, headers: Headers, receive: Receive) -> bytes | None:
        """The body; None if the client disconnects before its end."""
        refused = functools.partial(ApiError, headers={"Connection": "close"})
        message = f"the body is larger than {limit} bytes"
        too_large = refused(413, "body_too_large", message, hint="send less in one request")
        if int(headers.get("content-length", "0")) > limit:
            raise too_large
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                while more:
                    part = await receive()
                    if part["type"] == "http.disconnect":
                        return None
                    body += part.get("body", b"")
                    more = part.get("more_body", False)
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            message = f"the body did not arrive within {self.settings.timeout_s:g} s"
            hint = "send it faster, or in one piece"
            raise refused(408, "request_timeout", message, hint=hint) from None
        return bytes(body)


def _methods_of(routes: Iterable[Route | Mount]) -> set[str]:
    """What a path can be asked by; files are below what is mounted."""
    methods = set[str]()
    for route in routes:
        methods.update(getattr(route, "methods", None) or ("GET",))
    if "GET" in methods:
        methods.add("HEAD")
    return methods
