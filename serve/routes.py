"""The routes of the API: check the request, pass it to the `Engine`, return the result."""

import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from rag.core.log import get_logger
from serve.engine import SEE_LOG, Engine, Job
from serve.errors import ApiError, invalid_request
from serve.schemas import (
    AskOut,
    AskRequest,
    FeedbackRequest,
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


log = get_logger(__name__)
MAX_FEEDBACK_BYTES = 64 << 20  # of the file
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


@router.post("/v1/feedback", tags=["questions"])
async def feedback(body: FeedbackRequest, engine: AppEngine) -> Response:
    """Append the judgement to the server's file of labelled questions, and return the id of its record.

    `passage_id` is the passage of the answer's evidence in `index`; for a right answer it becomes the gold
    passage.
    """
    file, index = engine.settings.feedback_file, engine.index_name(body.index)
    if file is None:
        hint = "set RAG_SERVE_FEEDBACK_FILE"
        raise ApiError(403, "feedback_disabled", "this server keeps no feedback", hint=hint)
    if body.passage_id is not None and await engine.passage(body.passage_id, index) is None:
        hint = "passage_id is that of the evidence"
        raise ApiError(404, "passage_not_found", "no passage has this id", hint=hint)
    right = body.answer if body.verdict == "right" else body.better_answer
    is_gold = body.verdict == "right" and body.passage_id is not None
    record = {
        "id": f"feedback-{uuid.uuid4().hex}",
        "question": body.question,
        "answers": [right] if right else [],
        **({"gold_passage_ids": [body.passage_id]} if is_gold else {}),
        "verdict": body.verdict,
        "shown_answer": body.answer,
        "index_version": engine.require_ready(index).index_version,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **({"index": index} if len(engine.holders) > 1 else {}),
    }
    await engine.in_thread(append_record, file, record, MAX_FEEDBACK_BYTES)
    return JSONResponse({"id": record["id"]})


def append_record(path: Path, record: dict[str, Any], max_bytes: int) -> None:
    """Append one line and sync it; several processes may do so at the same time.

    Raises:
        ApiError: 507 if the file would exceed `max_bytes`, 500 if writing fails.
    """
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    try:
        with path.open("ab+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            size_bytes = stream.seek(0, os.SEEK_END)
            if size_bytes + len(line) > max_bytes:
                message, hint = "the file of feedback has reached its limit", "the operator may move it away"
                raise ApiError(507, "feedback_full", message, hint=hint)
            stream.seek(max(0, size_bytes - 1))
            if stream.read(1) not in (b"\n", b""):
                line = b"\n" + line  # a crash or a full disk has cut the last line off
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        log.error("feedback could not be written: %s", error, extra={"path": str(path)})
        raise ApiError(500, "feedback_failed", "the feedback could not be written", hint=SEE_LOG) from error


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
    return JSONResponse(await engine.replace(name, anew=True))


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
