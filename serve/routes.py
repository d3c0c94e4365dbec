"""The routes of the API: check the request, pass it to the `Engine`, return the result."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from serve.engine import Engine, Job
from serve.errors import ApiError, invalid_request
from serve.schemas import (
    AskOut,
    AskRequest,
    ErrorOut,
    PassageOut,
    ReloadOut,
    ReloadRequest,
    RetrieveOut,
    RetrieveRequest,
    StatusOut,
    checked_filter,
)

TAGS = [
    {"name": "questions", "description": "Ask, retrieve, look up."},
    {"name": "chat", "description": "What OpenAI's clients call; errors are in OpenAI's shape."},
    {"name": "documents", "description": "Send, delete and list documents; with API keys."},
    {"name": "operation", "description": "Health, readiness, metrics, reload."},
]

_DESCRIPTIONS = {
    400: "The body cannot be read",
    401: "An API key is needed",
    403: "Not allowed on this server",
    404: "There is no such thing",
    408: "The body did not arrive in time",
    409: "Already under way",
    413: "The body is too large",
    429: "This API key has asked too much; see Retry-After",
    415: "The body is not JSON",
    422: "The request is not valid",
    500: "The server failed: internal_error, retrieval_failed or reload_failed",
    502: "The model behind the reader gave no answer: reader_failed",
    503: "Not ready, full, or shutting down; see Retry-After",
    504: "It took too long",
    507: "The file of feedback is full",
}


def error_models(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Response model and texts of these HTTP statuses for the OpenAPI document."""
    return {status: {"model": ErrorOut, "description": _DESCRIPTIONS[status]} for status in statuses}


async def _engine(request: Request) -> Engine:
    engine = request.app.state.engine
    assert isinstance(engine, Engine)
    return engine


AppEngine = Annotated[Engine, Depends(_engine)]
router = APIRouter()


async def _without_query(request: Request) -> None:
    if request.query_params:
        names = ", ".join(sorted(request.query_params))[:100]
        raise invalid_request(f"{names!r} in the URL is not read", "send parameters in the JSON body")


@router.post(
    "/v1/ask",
    dependencies=[Depends(_without_query)],
    tags=["questions"],
    summary="Answer one question, or several",
    response_model=AskOut,
    responses=error_models(400, 401, 408, 413, 415, 422, 429, 500, 502, 503, 504),
)
async def ask(body: AskRequest, request: Request, engine: AppEngine) -> Response:
    """Answers with evidence, best first.

    With `question` the result is one object, with `questions` it is `{"results": [...]}`. Offsets of evidence
    count Unicode code points.
    """
    limits, questions = engine.settings, body.checked_questions(engine.settings)
    top_k = body.checked("top_k", limits.read_top_k, limits.max_top_k)
    n_best = body.checked("n_best", limits.n_best, limits.max_n_best)
    job = Job("ask", engine.index_name(body.index), top_k, n_best, filter=checked_filter(body.filter))
    return JSONResponse(body.shown(await engine.run(request, job, questions)))


@router.post(
    "/v1/retrieve",
    dependencies=[Depends(_without_query)],
    tags=["questions"],
    summary="Find passages for one question, or several",
    response_model=RetrieveOut,
    responses=error_models(400, 401, 408, 413, 415, 422, 429, 500, 503, 504),
)
async def retrieve(body: RetrieveRequest, request: Request, engine: AppEngine) -> Response:
    """Passages without answers, best first; larger scores are better, comparable within one index only."""
    limits, questions = engine.settings, body.checked_questions(engine.settings)
    top_k = body.checked("top_k", limits.retrieve_top_k, limits.max_top_k)
    job = Job("retrieve", engine.index_name(body.index), top_k, filter=checked_filter(body.filter))
    return JSONResponse(body.shown(await engine.run(request, job, questions)))


@router.get(
    "/v1/passages/{passage_id:path}",
    tags=["questions"],
    summary="One passage by its id",
    response_model=PassageOut,
    responses=error_models(401, 404, 422, 500, 503),
)
async def passage(
    passage_id: str,
    engine: AppEngine,
    index: str | None = None,
    around: Annotated[int, Query(ge=0, le=20)] = 0,
) -> Response:
    """Title and text of a passage of `index`, and its location in the file it comes from, if any.

    With `around` also that many passages before and after it in its document.
    """
    shown = await engine.passage(passage_id, engine.index_name(index), around)
    if shown is None:
        raise ApiError(
            404,
            "passage_not_found",
            f"no passage has the id {passage_id[:100]!r}",
            hint="ids come from /v1/retrieve and /v1/ask and belong to one index",
        )
    return JSONResponse(shown)


@router.post(
    "/v1/admin/reload",
    dependencies=[Depends(_without_query)],
    tags=["operation"],
    summary="Open an index again, without downtime",
    response_model=ReloadOut,
    responses=error_models(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503),
)
async def reload(engine: AppEngine, body: ReloadRequest | None = None) -> Response:
    """Open the folder of an index again and switch to it; running requests are not interrupted.

    Only on servers with API keys. The folder is the server's setting, which may be a symbolic link; of
    several indexes, `index` names the one to open, and without it the default is.
    """
    if not engine.settings.api_keys:
        raise ApiError(
            403,
            "reload_disabled",
            "reload over HTTP is off because this server has no API keys",
            hint="set RAG_SERVE_API_KEYS, or send the process SIGHUP",
        )
    name = engine.index_name(body.index if body else None)
    if engine.is_reloading(name):
        raise ApiError(409, "reload_in_progress", "a reload is under way already", hint="wait for its end")
    return JSONResponse(await engine.reload(name))


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", tags=["operation"], summary="Is the process alive", response_model=StatusOut)
async def healthz() -> Response:
    """200 as soon as the process serves HTTP."""
    return JSONResponse({"status": "alive"})


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    tags=["operation"],
    summary="Can it answer",
    response_model=StatusOut,
    responses=error_models(503),
)
async def readyz(engine: AppEngine) -> Response:
    """200 once every index is loaded; 503 before that and while shutting down."""
    served = {}
    for name in engine.holders:
        pipeline = engine.require_ready(name)
        served[name] = {
            "index_version": pipeline.index_version,
            "n_passages": pipeline.n_passages,
            **({"read_only": reason} if (reason := engine.read_only(name)) else {}),
        }
    others = {"indexes": served} if len(served) > 1 else {}
    return JSONResponse({"status": "ready", **served[engine.default], **others})


@router.head("/metrics", include_in_schema=False)
@router.get(
    "/metrics",
    tags=["operation"],
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(engine: AppEngine) -> Response:
    """Requests, latencies by stage, queue depth, batch sizes, rejected requests, and the index in use.

    They are those of all workers together.
    """
    return Response(engine.metrics.render(), media_type=engine.metrics.content_type)
