"""API keys, and limits on the size and time of request bodies."""

import asyncio
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, error_response
from serve.metrics import ServerMetrics
from serve.settings import hash_api_key

DOCUMENTS_PATH = "/v1/documents"


def find_key(headers: Headers) -> str | None:
    """The API key of a request, `Authorization: Bearer KEY` or `X-API-Key: KEY`; one character per byte."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (key := value.strip(" \t")):
        return key
    return headers.get("x-api-key") or None


class ApiKeys:
    """Requires an API key for paths under `/v1/`; does nothing if no keys are set.

    Log and metrics name a key by its place in the settings, which tells nothing about it.

    Args:
        key_hashes: hex sha256 of the accepted keys; every one is compared, in constant time.
    """

    def __init__(self, app: ASGIApp, key_hashes: Sequence[str], metrics: ServerMetrics) -> None:
        self.app, self.key_hashes, self.metrics = app, tuple(key_hashes), metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http" or not self.key_hashes or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        key = find_key(Headers(scope=scope))
        key_hash = hash_api_key(key.encode("latin-1")) if key is not None else ""
        number = 0  # every hash is compared, so that the time tells nothing
        for place, accepted in enumerate(self.key_hashes, start=1):
            number = place if hmac.compare_digest(accepted, key_hash) else number
        if not number:
            self.metrics.rejected.labels("unauthorized").inc()
            error = ApiError(
                401,
                "unauthorized",
                "this API key is not accepted" if key else "an API key is needed",
                hint="send Authorization: Bearer KEY, or X-API-Key: KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error, scope)(scope, receive, send)
            return
        scope["state"]["api_key"] = scope["state"]["log_fields"]["key"] = str(number)
        await self.app(scope, receive, send)


class BodyLimit:
    """Reads the request body before the application, with limits on its size (declared or chunked) and time.

    Args:
        max_body_bytes: larger bodies are answered with 413.
        max_upload_bytes: the same for documents.
        timeout_s: slower bodies are answered with 408.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        timeout_s: float,
        metrics: ServerMetrics,
        max_upload_bytes: int = 0,
    ) -> None:
        self.app, self.timeout_s, self.metrics = app, timeout_s, metrics
        self.max_body_bytes, self.max_upload_bytes = max_body_bytes, max(max_body_bytes, max_upload_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        try:
            is_upload = scope["path"] == DOCUMENTS_PATH
            limit = self.max_upload_bytes if is_upload else self.max_body_bytes
            body = await self._read(Headers(scope=scope), receive, limit)
        except ApiError as error:
            self.metrics.rejected.labels(error.code).inc()
            await error_response(error, scope)(scope, receive, send)
            return
        if body is None:
            return  # the client disconnected
        is_replayed = False

        async def replay() -> Message:
            nonlocal is_replayed
            if is_replayed:
                return await receive()
            is_replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    async def _read(self, headers: Headers, receive: Receive, limit: int) -> bytes | None:
        declared = headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
            raise self._too_large(limit)
        chunks, size_bytes = [], 0
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk: bytes = message.get("body", b"")
                    size_bytes += len(chunk)
                    if size_bytes > limit:
                        raise self._too_large(limit)
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            raise ApiError(
                408,
                "request_timeout",
                f"the body did not arrive within {self.timeout_s:g} s",
                hint="send it faster, or in one piece",
                headers={"Connection": "close"},
            ) from None

    def _too_large(self, limit: int) -> ApiError:
        return ApiError(
            413,
            "body_too_large",
            f"the body is larger than {limit} bytes",
            hint="send less in one request",
            headers={"Connection": "close"},
        )
