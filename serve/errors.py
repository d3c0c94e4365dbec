"""One JSON shape for every error: `{"error": {"code", "message", "hint", "request_id"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response


class ApiError(Exception):
    """An error to send to the client; its texts are written for clients and contain nothing internal."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.headers = dict(headers or {})


def shutting_down() -> ApiError:
    """The error for requests that the server will not answer before it stops."""
    return ApiError(
        503,
        "shutting_down",
        "the server is shutting down",
        hint="ask another instance",
        headers={"Retry-After": "5", "Connection": "close"},
    )


def error_response(error: ApiError, request_id: str) -> JSONResponse:
    """The error as a response."""
    texts = {"code": error.code, "message": _encodable(error.message), "hint": _encodable(error.hint)}
    body = {"error": {**texts, "request_id": request_id}}
    return JSONResponse(body, status_code=error.status, headers=error.headers)


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors of the framework (validation, unknown paths and methods) in this shape."""

    async def on_error(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            error = _from_http(request, error)
        elif isinstance(error, RequestValidationError):
            error = _from_validation(request, error)
        assert isinstance(error, ApiError)
        return error_response(error, request.state.request_id)

    for kind in (ApiError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, on_error)


def _from_http(request: Request, error: HTTPException) -> ApiError:
    path, hint = request.url.path[:200], "GET /openapi.json lists the paths and methods of this server"
    if error.status_code == 404:
        message = f"there is nothing at {path}"
    elif error.status_code == 405:
        message = f"{request.method} is not possible at {path}"
    elif error.status_code == 400:
        message, hint = "the request could not be read", "send a JSON object in UTF-8"
    else:
        message, hint = HTTPStatus(error.status_code).phrase.lower(), ""
    code = HTTPStatus(error.status_code).name.lower()  # "not_found", "method_not_allowed", …
    return ApiError(error.status_code, code, message, hint=hint, headers=error.headers)


def _from_validation(request: Request, error: RequestValidationError) -> ApiError:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = request.headers.get("content-length", "1") != "0"
    if has_body and media_type != "application/json" and not media_type.endswith("+json"):
        found = f"content type {media_type!r}" if media_type else "no content type"
        return ApiError(
            415, "unsupported_media_type", f"{found}, expected 'application/json'",
            hint="send the header Content-Type: application/json",
        )  # fmt: skip
    problems = [_describe(problem) for problem in error.errors()[:5]]
    return ApiError(
        422, "invalid_request", "; ".join(problems), hint='a minimal body is {"question": "Who wrote Faust?"}'
    )


def _describe(problem: Mapping[str, Any]) -> str:
    """Describe a validation problem in words, without the input that caused it."""
    if problem["type"] == "json_invalid":
        return f"the body is not valid JSON (near character {problem['loc'][-1]})"
    place = ".".join(str(part)[:40] for part in problem["loc"] if part != "body")
    if problem["type"] == "missing" and not place:
        return "the body is empty"
    if problem["type"] in ("model_attributes_type", "model_type") and not place:
        return "the body is not a JSON object"
    if problem["type"] == "extra_forbidden":
        return f"{place!r} is not a known field"
    text = str(problem["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    return f"{place}: {text}" if place else text


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON allows and UTF-8 does not, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
