"""The routes of the API: check the request, pass it to the `Engine`, return the result."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from serve.engine import Engine, Job
from serve.errors import ApiError, invalid_request
from serve.schemas import (
    AskOut,
    AskRequest,
    PassageOut,
    ReloadRequest,
    RetrieveOut,
    RetrieveRequest,
    checked_filter,
)


async def _engine(request: Request) -> Engine:
    engine = request.app.state.engine
    assert isinstance(engine, Engine)
    return engine


async def _without_query(request: Request) -> None:
    if request.query_params:
        names = ", ".join(sorted(request.query_params))[:100]
        raise invalid_request(f"{names!r} in the URL is not read", "send parameters in the JSON body")


AppEngine = Annotated[Engine, Depends(_engine)]
BODY_ALONE = [Depends(_without_query)]
router = APIRouter()


@router.post("/v1/ask", dependencies=BODY_ALONE, tags=["questions"], response_model=AskOut)
async def ask(body: AskRequest, request: Request, engine: AppEngine) -> Response:
    """Answer one question, or several, with evidence, best first.

    With `question` the result is one object, with `questions` it is `{"results": [...]}`. Offsets of evidence
    count Unicode code points.
    """
    index, conditions = engine.index_name(body.index), checked_filter(body.filter)
    job = Job("ask", index, body.top_k, body.n_best, conditions)
    return JSONResponse(body.shown(await engine.run(request, job, body.texts)))


@router.post("/v1/retrieve", dependencies=BODY_ALONE, tags=["questions"], response_model=RetrieveOut)
async def retrieve(body: RetrieveRequest, request: Request, engine: AppEngine) -> Response:
    """Passages without answers, best first; larger scores are better, comparable within one index only."""
    index, conditions = engine.index_name(body.index), checked_filter(body.filter)
    job = Job("retrieve", index, body.top_k, filter=conditions)
    return JSONResponse(body.shown(await engine.run(request, job, body.texts)))


@router.get("/v1/passages/{passage_id:path}", tags=["questions"], response_model=PassageOut)
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
        message, hint = (
            f"no passage has the id {passage_id[:100]!r}",
            "ids come from /v1/retrieve and /v1/ask",
        )
        raise ApiError(404, "passage_not_found", message, hint=f"{hint} and belong to one index")
    return JSONResponse(shown)


@router.post("/v1/admin/reload", dependencies=BODY_ALONE, tags=["operation"])
async def reload(engine: AppEngine, body: ReloadRequest | None = None) -> Response:
    """Open the folder of an index again and switch to it; running requests are not interrupted.

    Only on servers with API keys. The folder is the server's setting, which may be a symbolic link; of
    several indexes, `index` names the one to open, and without it the default is. The reply names both
    versions.
    """
    if not engine.settings.api_keys:
        message = "reload over HTTP is off because this server has no API keys"
        hint = "set RAG_SERVE_API_KEYS, or send the process SIGHUP"
        raise ApiError(403, "reload_disabled", message, hint=hint)
    name = engine.index_name(body.index if body else None)
    if engine.is_reloading(name):
        raise ApiError(409, "reload_in_progress", "a reload is under way already", hint="wait for its end")
    return JSONResponse(await engine.reload(name))


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", tags=["operation"])
async def healthz() -> Response:
    """200 as soon as the process serves HTTP."""
    return JSONResponse({"status": "alive"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", tags=["operation"])
async def readyz(engine: AppEngine) -> Response:
    """200 once every index is loaded, with its version and number of passages; 503 before that.

    `indexes` has all of them by name where there are several, `read_only` why documents cannot be changed.
    """
    served = {name: engine.description(name) for name in engine.holders}
    others = {"indexes": served} if len(served) > 1 else {}
    return JSONResponse({"status": "ready", **served[engine.default], **others})


@router.head("/metrics", include_in_schema=False)
@router.get(
    "/metrics",
    tags=["operation"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(engine: AppEngine) -> Response:
    """Prometheus' metrics of all workers together."""
    return Response(engine.metrics.render(), media_type=engine.metrics.content_type)
