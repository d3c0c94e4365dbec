"""The routes of the API: check the request, pass it to the `Engine`, return the result."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from serve.engine import Engine, Job
from serve.errors import ApiError, invalid_request
from serve.schemas import AskOut, AskRequest, PassageOut, RetrieveOut, RetrieveRequest, checked_filter


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
    job = Job("ask", body.top_k, body.n_best, checked_filter(body.filter))
    return JSONResponse(body.shown(await engine.run(request, job, body.texts)))


@router.post("/v1/retrieve", dependencies=BODY_ALONE, tags=["questions"], response_model=RetrieveOut)
async def retrieve(body: RetrieveRequest, request: Request, engine: AppEngine) -> Response:
    """Passages without answers, best first; larger scores are better, comparable within one index only."""
    job = Job("retrieve", body.top_k, filter=checked_filter(body.filter))
    return JSONResponse(body.shown(await engine.run(request, job, body.texts)))


@router.get("/v1/passages/{passage_id:path}", tags=["questions"], response_model=PassageOut)
async def passage(
    passage_id: str, engine: AppEngine, around: Annotated[int, Query(ge=0, le=20)] = 0
) -> Response:
    """Title and text of a passage, and its location in the file it comes from, if any.

    With `around` also that many passages before and after it in its document.
    """
    shown = await engine.passage(passage_id, around)
    if shown is None:
        message = f"no passage has the id {passage_id[:100]!r}"
        hint = "ids come from /v1/retrieve and /v1/ask and belong to one index"
        raise ApiError(404, "passage_not_found", message, hint=hint)
    return JSONResponse(shown)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", tags=["operation"])
async def healthz() -> Response:
    """200 as soon as the process serves HTTP."""
    return JSONResponse({"status": "alive"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", tags=["operation"])
async def readyz(engine: AppEngine) -> Response:
    """200 once the index is loaded, with its version and number of passages; 503 before that.

    `read_only` says why documents cannot be changed, if so.
    """
    pipeline, reason = engine.require_ready(), engine.read_only()
    shown = {"index_version": pipeline.index_version, "n_passages": pipeline.n_passages}
    return JSONResponse({"status": "ready", **shown, **({"read_only": reason} if reason else {})})


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
