"""The routes of the API: check the request, pass it to the `Engine`, return the result.

What they answer is described in `serve.responses`.
"""

import asyncio
import fcntl
import json
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from starlette.responses import JSONResponse, Response

from rag.core.types import AnswerSet, Passage, SearchResult
from rag.data.filters import parse_filter
from rag.data.records import fault_of_question
from rag.pipeline import Pipeline
from serve.engine import Engine
from serve.errors import ApiError, invalid_request
from serve.jobs import Ask, Retrieve, Served, passage_json, served_json
from serve.responses import (
    Alive,
    AnswerSetOut,
    FeedbackOut,
    HitsOut,
    IsReady,
    NeighboursOut,
    Ready,
    Several,
    ShelfOut,
    ShelvesReady,
)

MAX_QUESTION_CHARS = 1000
MAX_FEEDBACK_BYTES = 64 << 20  # of the file


def check_text(text: str) -> str:
    """The text; a ValueError if it cannot be a question."""
    if fault := fault_of_question(text):
        raise ValueError(fault)
    return text


def _check_shelves(value: object, check: ValidatorFunctionWrapHandler) -> object:
    try:
        return check(value)
    except ValidationError:
        raise ValueError("give the name of a shelf, or a list of names") from None


Stripped = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1)]
Text = Annotated[Stripped, Field(max_length=MAX_QUESTION_CHARS), AfterValidator(check_text)]
TEXT = TypeAdapter[str](Text)
LongText = Annotated[str, Strict(), AfterValidator(check_text)]
_Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=255)]
ShelfNames = Annotated[
    _Name | Annotated[list[_Name], Field(min_length=1)] | None,
    WrapValidator(_check_shelves),
    Field(description="the shelf to ask, or several; all without it"),
]
ShelfName = Annotated[_Name | None, Query(description="the shelf, on a server of several")]


class Asked(BaseModel):
    """Where a request searches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filter: dict[str, Any] | None = Field(
        None,
        description="only passages that meet all conditions: path (patterns such as guide/*), document, or "
        'metadata fields; each with a value, a list of values, or bounds such as {"gte": 2020}',
        examples=[{"path": "guide/*"}],
    )
    shelf: ShelfNames = None


class RetrieveRequest(Asked):
    """One question or several, for passages without answers."""

    question: Text | None = Field(
        None, description="one question", examples=["Where does the Danube rise?"]
    )
    questions: list[Text] | None = Field(
        None, min_length=1, max_length=32, description="several questions, answered in this order"
    )
    top_k: int = Field(
        20, ge=1, le=100, strict=True, description="passages to retrieve for each question"
    )

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if (self.question is None) == (self.questions is None):
            raise ValueError("give either 'question' (a string) or 'questions' (a list of strings)")
        return self

    @property
    def texts(self) -> list[str]:
        """The questions."""
        return self.questions or [self.question or ""]


class AskRequest(RetrieveRequest):
    """One question or several."""

    n_best: int = Field(
        5, ge=1, le=20, strict=True, description="most answers to return for each question"
    )


class FeedbackRequest(BaseModel):
    """A judgement of one answer: right, wrong, or wrong with a better answer."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    answer: Annotated[Stripped, AfterValidator(check_text)]
    verdict: Literal["right", "wrong"]
    better_answer: Text | None = None
    passage_id: Text | None = None
    shelf: ShelfName = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.better_answer is not None and self.verdict == "right":
            raise ValueError("a right answer has no 'better_answer'")
        return self


async def _engine(request: Request) -> Engine:
    engine = request.app.state.engine
    assert isinstance(engine, Engine)
    return engine


async def check_query(request: Request) -> None:
    """An ApiError, 422, for what no parameter of the route reads, such as a name spelled wrong."""
    if not request.query_params:
        return
    path = request.app.openapi()["paths"][request.scope["route"].path_format]
    parameters = path[request.method.lower()].get("parameters", [])
    known = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
    unknown = request.query_params.keys() - known
    if unknown:
        names = ", ".join(sorted(unknown))[:100]
        read = ", ".join(sorted(known)) or "nothing; a POST has its parameters in the JSON body"
        raise invalid_request(f"{names!r} in the URL is not read", f"known here: {read}")


def base_url_of(request: Request) -> str:
    """The address of the server as its client knows it, with a slash at its end."""
    prefix = quote(request.headers.get("x-forwarded-prefix", "").strip("/"))  # of a proxy
    return f"{request.base_url}{prefix}/" if prefix else str(request.base_url)


AppEngine = Annotated[Engine, Depends(_engine)]
router = APIRouter(tags=["questions"])
operation = APIRouter(tags=["operation"])  # needs no key


@router.post(
    "/v1/ask",
    response_model=AnswerSetOut | Several[AnswerSetOut],
)
async def ask(body: AskRequest, request: Request, engine: AppEngine) -> Response:
    """Answer one question, or several, with evidence, best first.

    With `question` the result is one object, with `questions` it is `{"results": [...]}`.
    """
    job = Ask(
        filter=parse_filter(body.filter),
        scope=engine.scope(request, body.shelf),
        top_k=body.top_k,
        n_best=body.n_best,
    )
    return _response(body, await engine.run(request, job, body.texts))


@router.post(
    "/v1/retrieve",
    response_model=HitsOut | Several[HitsOut],
)
async def retrieve(body: RetrieveRequest, request: Request, engine: AppEngine) -> Response:
    """Passages without answers, best first.

    With `question` the result is one object, with `questions` it is `{"results": [...]}`.
    """
    job = Retrieve(
        filter=parse_filter(body.filter),
        scope=engine.scope(request, body.shelf),
        top_k=body.top_k,
    )
    return _response(body, await engine.run(request, job, body.texts))


def _response(
    body: RetrieveRequest, results: Sequence[Served[AnswerSet]] | Sequence[Served[SearchResult]]
) -> Response:
    """The results in the form of the request: that of one question, or those of several."""
    contents = list(map(served_json, results))
    return JSONResponse({"results": contents} if body.questions else contents[0])


@router.get("/v1/passages/{passage_id:path}", response_model=NeighboursOut)
async def passage(
    passage_id: str,
    request: Request,
    engine: AppEngine,
    around: Annotated[int, Query(ge=0, le=20)] = 0,
    shelf: ShelfName = None,
) -> Response:
    """Title and text of a passage, its metadata, and its location in the file it comes from, if
    any.

    With `around` also that many passages `before` and `after` it in its document.
    """
    scope = engine.scope(request, shelf)
    found = await engine.read(scope, _look_up, passage_id, around)
    if found is None:
        message = f"no passage has the id {passage_id[:100]!r}"
        hint = "ids come from /v1/retrieve and /v1/ask and belong to one index"
        raise ApiError(404, "passage_not_found", message, hint=hint)
    before, passage, after = found
    passages = (*before, passage, *after)
    engine.audit(request, scope, (passage.id for passage in passages))
    content = passage_json(passage)
    if around:
        content["before"] = list(map(passage_json, before))
        content["after"] = list(map(passage_json, after))
    return JSONResponse(content)


def _look_up(
    pipeline: Pipeline, passage_id: str, around: int
) -> tuple[Sequence[Passage], Passage, Sequence[Passage]] | None:
    """The passages before a passage, itself, and those behind it."""
    passage = pipeline.passage(passage_id)
    if passage is None:
        return None
    before: Sequence[Passage] = ()
    after: Sequence[Passage] = ()
    if around:
        before, after = pipeline.index.around(passage_id, around)
    return before, passage, after


@router.post("/v1/feedback")
async def feedback(body: FeedbackRequest, request: Request, engine: AppEngine) -> FeedbackOut:
    """Append the judgement to the server's file of labelled questions, and return the id of its
    record.

    `passage_id` is the passage of the answer's evidence; for a right answer it becomes the gold
    passage.
    """
    file = engine.settings.feedback_file
    if file is None:
        hint = "set RAG_SERVE_FEEDBACK_FILE"
        raise ApiError(403, "feedback_disabled", "this server keeps no feedback", hint=hint)
    scope = engine.scope(request, body.shelf)
    has_passage, version = await engine.read(scope, _judged, body.passage_id)
    if not has_passage:
        hint = "passage_id is that of the evidence"
        raise ApiError(404, "passage_not_found", "no passage has this id", hint=hint)
    is_right = body.verdict == "right"
    answer = body.answer if is_right else body.better_answer
    id = f"feedback-{uuid.uuid4().hex}"
    record: dict[str, object] = {
        "id": id,
        "question": body.question,
        "answers": [answer] if answer else [],
        "verdict": body.verdict,
        "shown_answer": body.answer,
        "index_version": version,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if is_right and body.passage_id:
        record["gold_passage_ids"] = [body.passage_id]
    if body.shelf:
        record["shelf"] = body.shelf
    await asyncio.to_thread(append_record, file, record, MAX_FEEDBACK_BYTES)
    return FeedbackOut(id=id)


def _judged(pipeline: Pipeline, passage_id: str | None) -> tuple[bool, str]:
    """Whether the passage that a judgement names, if any, and the version of the index exist."""
    has_passage = passage_id is None or pipeline.passage(passage_id) is not None
    return has_passage, pipeline.index_version


def append_record(path: Path, record: dict[str, object], max_bytes: int) -> None:
    """Append a line and sync it; several processes may do so at the same time.

    Raises:
        ApiError: 507 if the file would exceed `max_bytes`, or cannot be written.
    """
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    # Without a buffer, which would be written at the end.
    with path.open("ab", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        end = stream.seek(0, os.SEEK_END)
        if end + len(line) > max_bytes:
            message = "the file of feedback has reached its limit"
            raise ApiError(507, "feedback_full", message, hint="the operator may move it away")
        with suppress(OSError):
            if stream.write(line) == len(line):
                os.fsync(stream.fileno())
                return
        # Half a line would spoil the next record as well.
        stream.truncate(end)
        message = "the feedback could not be written"
        raise ApiError(507, "disk_full", message, "the server's disk may be full; nothing was kept")


@operation.get("/healthz")
async def healthz() -> Alive:
    """200 as soon as the process serves HTTP."""
    return Alive()


@operation.get("/readyz", response_model_exclude_defaults=True)
async def readyz(request: Request, engine: AppEngine) -> IsReady | Ready | ShelvesReady:
    """200 once the index is loaded, or one of several; 503 before that."""
    engine.require_ready()
    if not request.state.person.name:
        return IsReady(status="ready")
    if engine.settings.has_shelves:
        return await _shelves_ready(engine)
    shelf = engine.shelves[""]
    return Ready(
        status="ready",
        index_version=shelf.in_use,
        n_passages=await asyncio.to_thread(shelf.count_open),
        read_only=await shelf.read_only(),
    )


async def _shelves_ready(engine: Engine) -> ShelvesReady:
    ready = ShelvesReady(status="ready", shelves={})
    for shelf in engine.shelves:
        if shelf.fault:
            ready.unavailable[shelf.name] = shelf.fault
            if not shelf.in_use:
                continue
        ready.shelves[shelf.name] = ShelfOut(
            index_version=shelf.in_use or shelf.version,
            n_passages=shelf.n_passages,
            read_only=await shelf.read_only(),
        )
    return ready


@operation.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request, engine: AppEngine) -> Response:
    """Prometheus' metrics of all workers together; those of shelves are for people with a key."""
    text = engine.metrics.render(with_shelves=bool(request.state.person.name))
    return Response(text, media_type=engine.metrics.content_type)
