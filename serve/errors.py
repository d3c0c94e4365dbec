"""The JSON shape of every error: `{"error": {"code", "message", "hint", "request_id", "type",
"param"}}`.

The last two are for OpenAI's clients, which expect them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import Counter
from pydantic import BaseModel
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from indexers.rights import RightsError
from rag.core.errors import QuestionError
from rag.core.log import get_logger
from rag.core.types import as_unicode
from rag.data.filters import FilterError

log = get_logger(__name__)


class ErrorBody(BaseModel):
    """What went wrong and what to do; `type` and `param` are for OpenAI's clients."""

    code: str
    message: str
    hint: str
    request_id: str
    type: Literal["server_error", "invalid_request_error"]
    param: None


class ErrorOut(BaseModel):
    """Shape of every error."""

    error: ErrorBody


@dataclass(eq=False)
class ApiError(Exception):
    """An error to send to the client; its texts are written for clients and contain nothing
    internal.
    """

    status: int
    code: str
    message: str
    hint: str = ""
    headers: Mapping[str, str] | None = None


def invalid_request(message: str, hint: str = "") -> ApiError:
    """The answer to a request that cannot be understood or exceeds a limit."""
    return ApiError(422, "invalid_request", message, hint=hint)


def refused(
    code: str,
    message: str,
    retry_after_s: int,
    hint: str = "try again after the time in Retry-After",
) -> ApiError:
    """The error for a request that is refused to protect the server."""
    return ApiError(503, code, message, hint, {"Retry-After": str(retry_after_s)})


def timed_out(limit_s: float) -> ApiError:
    """The error for a request whose answer, or the next words of it, do not come in time."""
    hint = "try again, ask fewer questions at once, or lower top_k"
    return ApiError(504, "timeout", f"no answer within {limit_s:g} s", hint=hint)


def shutting_down() -> ApiError:
    """The error for requests that the server will not answer before it stops."""
    headers = {"Retry-After": "5", "Connection": "close"}
    message = "the server is shutting down"
    return ApiError(503, "shutting_down", message, "ask another instance", headers)


def error_body(error: ApiError, scope: Scope) -> dict[str, object]:
    """The error as JSON values, for the request of this scope."""
    body = {
        "code": error.code,
        "message": as_unicode(error.message),
        "hint": as_unicode(error.hint),
        "request_id": scope["state"]["request_id"],
        "type": "server_error" if error.status >= 500 else "invalid_request_error",
        "param": None,
    }
    return {"error": body}


def error_response(error: ApiError, scope: Scope) -> JSONResponse:
    """The error as a response to the request of this scope."""
    return JSONResponse(error_body(error, scope), status_code=error.status, headers=error.headers)


def add_error_handlers(app: FastAPI, rejected: Counter) -> None:
    """Answer errors of the framework (validation, unknown paths and methods) in this shape.

    Args:
        rejected: counts requests that are refused, or that failed in time or in search, by their
            code.
    """

    async def on_error(request: Request, error: Exception) -> Response:
        answer = answer_to(error)
        if isinstance(error, HTTPException):
            answer = _from_http(request, error)
        elif isinstance(error, RequestValidationError):
            answer = _from_validation(request, error)
        assert answer is not None
        if answer.status in (502, 503, 504) or answer.code == "retrieval_failed":
            rejected.labels(answer.code).inc()
        return error_response(answer, request.scope)

    kinds = (ApiError, HTTPException, RequestValidationError)
    for kind in (*kinds, FilterError, QuestionError, RightsError):
        app.add_exception_handler(kind, on_error)


def answer_to(error: object) -> ApiError | None:
    """The answer to an error of the client, or of rights that cannot be read, of which the log has
    the reason; None for other errors.
    """
    match error:
        case ApiError():
            return error
        case FilterError() | QuestionError():
            return invalid_request(*error.spelled('"{}"'.format))
        case RightsError():
            log.error("%s", error)
            message = "the server cannot tell now who may read what"
            return refused("rights_unreadable", message, 10, "see the server's log")
    return None


def media_type_of(request: Request) -> str:
    """What a request says its body is, in small letters and without parameters; "" if nothing."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _from_http(request: Request, error: HTTPException) -> ApiError:
    status = HTTPStatus(error.status_code)
    path = request.url.path[:200]
    message = status.phrase.lower()
    hint = "GET /openapi.json lists the paths and methods of this server"
    if status == 404:
        message = f"there is nothing at {path}"
    elif status == 405:
        message = f"{request.method} is not possible at {path}"
    elif status == 400 and media_type_of(request).startswith("multipart/"):
        message = f"the form could not be read: {str(error.detail)[:200]}"
        hint = "send files as form fields, such as curl -F file=@guide.pdf"
    elif status == 400:
        message = "the request could not be read"
        hint = "send a JSON object in UTF-8"
    # The codes are "not_found", "method_not_allowed", …
    return ApiError(status, status.name.lower(), message, hint, error.headers)


def _from_validation(request: Request, error: RequestValidationError) -> ApiError:
    media_type = media_type_of(request)
    is_json = media_type == "application/json" or media_type.endswith("+json")
    has_body = request.method != "GET" and request.headers.get("content-length", "1") != "0"
    if has_body and not is_json:
        found = f"content type {media_type!r}" if media_type else "no content type"
        message = f"{found}, expected 'application/json'"
        hint = "send the header Content-Type: application/json"
        return ApiError(415, "unsupported_media_type", message, hint)
    problems = map(describe, error.errors()[:5])
    hint = f"GET /openapi.json describes the request of {request.url.path}"
    if request.url.path == "/v1/ask":
        hint += '; it takes {"question": "Who wrote Faust?"}'
    return invalid_request("; ".join(problems), hint)


def describe(problem: ErrorDetails) -> str:
    """Describe a validation problem in words, without the input that caused it."""
    field = ".".join(str(part)[:40] for part in problem["loc"] if part != "body")
    if problem["type"] == "json_invalid":
        # FastAPI states the position in the body, pydantic's message holds line and column.
        if field.isdigit():
            return f"the body is not valid JSON (near character {field})"
        return f"{field or 'the body'} is not valid JSON ({problem['ctx']['error']})"
    if problem["type"] == "missing" and not field:
        return "the body is empty"
    if problem["type"] in ("model_attributes_type", "model_type") and not field:
        return "the body is not a JSON object"
    if problem["type"] == "extra_forbidden":
        return f"{field!r} is not a known field"
    text = str(problem["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    text = text[:1].lower() + text[1:]
    return f"{field}: {text}" if field else text
