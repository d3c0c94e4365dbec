"""What OpenAI's clients call: chat completions, vectors of texts, and the list of models."""

import base64
import json
import re
import time
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Request
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from starlette.responses import JSONResponse, Response, StreamingResponse

from rag.core.types import Location, Promise, as_unicode
from rag.core.wording import WITHHELD, WORDINGS
from rag.data.filters import parse_filter
from rag.data.text import simple_tokenize
from rag.policies import GREETING
from serve.engine import Engine, Job
from serve.errors import ApiError, invalid_request, refused
from serve.responses import (
    Choice,
    Completion,
    EmbeddingsOut,
    ModelOut,
    ModelsOut,
    Reply,
    Source,
    Usage,
)
from serve.routes import MAX_QUESTION_CHARS, AppEngine, Text, check_text

MODEL = "openqa-rag"
_UNDERSTOOD = "Question as understood: "
_GREETED = "Ask a question, and the passages that answer it are searched."
_FOLLOWS_UP = re.compile(
    r"^\W*(?:and|but|so|then|(?:what|how) about)\b"
    r"|\b(?:it|its|he|him|his|she|her|they|them|their|there|that|this|those|these)\b",
    re.IGNORECASE,
)
_LEAST_WORDS = 3  # a question of fewer words, such as "The population?", needs the one before it
_TOP_K, _N_BEST = 20, 5
_WEB = ("https://", "http://")
# OpenAI's fields that ask for another kind of reply, and the values by which they ask for none
_UNSUPPORTED = (
    *("tools", "tool_choice", "functions", "function_call", "response_format", "stop"),
    *("logprobs", "top_logprobs", "logit_bias", "audio", "web_search_options"),
)
_NEUTRAL: tuple[object, ...] = (None, False, "none", "auto", [], {}, {"type": "text"})
_TEXT = TypeAdapter(Text)

router = APIRouter()


class TextPart(BaseModel):
    """A part of a message; parts that are not text are ignored."""

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """A message of the conversation; only those of user and assistant are read."""

    role: str
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """The text of all its parts."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.type == "text")
        return self.content or ""


class ChatRequest(BaseModel):
    """A conversation whose last user message is the question; fields for sampling are ignored,
    since the same question always has the same answer.
    """

    model_config = ConfigDict(extra="allow")

    model: str = MODEL
    messages: list[ChatMessage] = Field(
        min_length=1, examples=[[{"role": "user", "content": "Where does the Danube rise?"}]]
    )
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    n: Literal[1] | None = None
    max_tokens: int | None = Field(None, ge=1, description="words and marks, as `usage` counts")
    max_completion_tokens: int | None = Field(None, ge=1, description="the same as max_tokens")
    filter: dict[str, Any] | None = Field(
        None, description="as in /v1/ask; not of OpenAI's protocol"
    )

    @model_validator(mode="after")
    def _can_be_obeyed(self) -> Self:
        extra = self.model_extra or {}
        for name in _UNSUPPORTED:
            if extra.get(name) not in _NEUTRAL:
                raise ValueError(f"{name!r} is not supported, replies are plain text; leave it out")
        return self


class EmbeddingsRequest(BaseModel):
    """Texts to encode; `input_type` is not of OpenAI's protocol."""

    model: str = MODEL
    input: list[Annotated[str, Strict(), AfterValidator(check_text)]] = Field(
        min_length=1, max_length=2048, description="texts, or a single one"
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="numbers, or the bytes of little-endian float32"
    )
    input_type: Literal["query", "passage"] = Field(
        "passage", description="which side of the encoder: questions or passages (without titles)"
    )
    dimensions: int | None = Field(None, description="only the encoder's own is accepted")

    @field_validator("input", mode="before")
    @classmethod
    def _are_texts(cls, value: object) -> object:
        if isinstance(value, list) and any(isinstance(item, int | list) for item in value):
            raise ValueError(
                "token ids, expected texts (OpenAIEmbeddings of LangChain: check_embedding_ctx_length=False)"
            )
        return [value] if isinstance(value, str) else value


@router.get("/v1/models", tags=["chat"])
async def models(engine: AppEngine) -> ModelsOut:
    """The index as a model; of several shelves all together, and each."""
    names = [MODEL, *(f"{MODEL}/{shelf.name}" for shelf in engine.shelves if shelf.name)]
    return ModelsOut(data=[_model(name, engine) for name in names])


@router.get("/v1/models/{model:path}", tags=["chat"])
async def model(model: str, engine: AppEngine) -> ModelOut:
    """The model of this name."""
    shelf_of(model, engine)
    return _model(model, engine)


def shelf_of(model: str, engine: Engine) -> str | None:
    """The shelf that the name of a model means; None: all.

    Raises:
        ApiError: 404: this server has no such model.
    """
    shelves = {f"{MODEL}/{shelf.name}": shelf.name for shelf in engine.shelves}
    if model != MODEL and not shelves.get(model):
        message = f"there is no model {model[:100]!r}"
        raise ApiError(404, "model_not_found", message, hint=f"the models here are {MODEL}")
    return shelves.get(model)


def _model(name: str, engine: Engine) -> ModelOut:
    return ModelOut(id=name, created=engine.created_s, owned_by=MODEL)


@router.post("/v1/chat/completions", tags=["chat"], response_model=Completion)
async def chat(body: ChatRequest, request: Request, engine: AppEngine) -> Response:
    """The answer with marks [n] and footnotes, or plainly that none was found.

    For a question that follows up ("and its population?"), passages are searched for together with
    the one before it, and read for it alone; the reply shows both. A greeting is no question.

    Beside OpenAI's fields, the reply has `question`, `sources`, `confidence` and
    `no_answer_confidence`; in a stream, the last piece of the reply has them.
    """
    shelf = shelf_of(body.model, engine)
    conditions = parse_filter(body.filter)
    message, previous = _last_questions(body.messages)
    try:
        message = _TEXT.validate_python(message)
    except ValidationError as error:
        raise invalid_request(f"the last user message: {error.errors()[0]['msg']}") from None
    sources = list[Source]()
    answers = []
    no_answer_confidence = 1.0
    if GREETING.fullmatch(message):
        engine.scope(request, shelf)
        understood = message
        content = _GREETED
    else:
        scope = engine.scope(request, shelf)
        context = context_of(message, previous)
        job = Job("ask", scope, _TOP_K, _N_BEST, conditions, context=context)
        (result,) = await engine.run(request, job, [message])
        understood = f"{job.context} {message}" if job.context else message
        base_url = _base_url(request)
        sources = _sources(result, base_url)
        content = _content(
            result, understood, sources, base_url if engine.settings.api_keys else None
        )
        answers = result["answers"]
        no_answer_confidence = result["no_answer_confidence"]
    content, reason = _cut(content, body.max_completion_tokens or body.max_tokens)
    n_prompt = _count(message.text for message in body.messages)
    n_reply = _count([content])
    completion = Completion(
        id=f"chatcmpl-{request.state.request_id}",
        created=int(time.time()),
        model=body.model,
        choices=[Choice(message=Reply(content=content), finish_reason=reason)],
        usage=Usage(
            prompt_tokens=n_prompt, completion_tokens=n_reply, total_tokens=n_prompt + n_reply
        ),
        question=understood,
        sources=sources,
        confidence=answers[0]["confidence"] if answers else None,
        no_answer_confidence=no_answer_confidence,
    )
    if not body.stream:
        return JSONResponse(completion.model_dump())
    shows_usage = body.stream_options is not None and body.stream_options.get("include_usage")
    events = _events(completion, bool(shows_usage))
    return StreamingResponse(events, media_type="text/event-stream")


async def _events(completion: Completion, shows_usage: bool) -> AsyncIterator[str]:
    """Server-sent events: the reply line by line, then the sources; the end mark closes the
    stream.
    """
    last = completion.model_dump(exclude={"choices", "usage"})
    first = {name: last.pop(name) for name in ("id", "object", "created", "model")}
    first["object"] = "chat.completion.chunk"

    def event(delta: dict[str, str], reason: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return f"data: {json.dumps({**first, 'choices': [choice], **more})}\n\n"

    (choice,) = completion.choices
    yield event({"role": "assistant", "content": ""})
    for line in choice.message.content.splitlines(keepends=True):
        yield event({"content": line})
    yield event({}, choice.finish_reason, **last)
    if shows_usage:
        usage = {**first, "choices": [], "usage": completion.usage.model_dump()}
        yield f"data: {json.dumps(usage)}\n\n"
    yield "data: [DONE]\n\n"


def _last_questions(messages: list[ChatMessage]) -> tuple[str, str]:
    """The last user message, and the one before it as it was understood, "" if there is none."""
    places = [place for place, message in enumerate(messages) if message.role == "user"]
    if not places:
        raise invalid_request("there is no message of the user", "end with the question")
    last = messages[places[-1]].text
    if len(places) == 1:
        return last, ""
    previous = _cleaned(messages[places[-2]].text).strip()
    if GREETING.fullmatch(previous):
        return last, ""
    reply = "\n".join(message.text for message in messages[places[-2] + 1 : places[-1]])
    understood = (line for line in _cleaned(reply).splitlines() if line.startswith(_UNDERSTOOD))
    return last, next(understood, previous).removeprefix(_UNDERSTOOD)


def _cleaned(text: str) -> str:
    """An earlier message without what no question may hold; the user asks another one now."""
    return as_unicode(text).replace("\0", " ")


def context_of(question: str, previous: str) -> str:
    """The question that this one follows up on; "" if it stands alone, or both are too long
    together.

    Example:
        >>> context_of("And its population?", "What is the capital of France?")
        'What is the capital of France?'
        >>> context_of("Who wrote Faust?", "What is the capital of France?")
        ''
    """
    follows_up = _FOLLOWS_UP.search(question) is not None or len(question.split()) < _LEAST_WORDS
    return previous if follows_up and len(f"{previous} {question}") <= MAX_QUESTION_CHARS else ""


def _base_url(request: Request) -> str:
    prefix = quote(request.headers.get("x-forwarded-prefix", "").strip("/"))  # of a proxy
    return f"{request.base_url}{prefix}/" if prefix else str(request.base_url)


def _sources(result: dict[str, Any], base_url: str) -> list[Source]:
    """The passages behind the answers: those they cite, or their paths, or their evidence."""
    answers = result["answers"][:1]
    cited = [
        passage
        for answer in answers
        for passage in (answer.get("citations") or answer.get("path") or [answer["evidence"]])
    ]
    passages = dict[tuple[str, str], dict[str, Any]]()
    # Two shelves may have a passage of one id.
    for passage in cited:
        passages[passage.get("shelf", ""), passage["passage_id"]] = passage
    for answer in answers:
        passage = answer["evidence"]
        passages.setdefault((passage.get("shelf", ""), passage["passage_id"]), passage)
    return [
        _source(number, passage, base_url)
        for number, passage in enumerate(passages.values(), start=1)
    ]


def _source(number: int, passage: dict[str, Any], base_url: str) -> Source:
    location = passage.get("location") or {}
    path = location.get("path", "")
    link = f"{base_url}v1/passages/{quote(passage['passage_id'])}"
    if "shelf" in passage:
        link += f"?shelf={quote(passage['shelf'], safe='')}"
    if path.startswith(_WEB):
        link = path
    page = location.get("page", "")
    return Source(number=number, path=path, page=page, link=link, **passage)


def _content(
    result: dict[str, Any], understood: str, sources: list[Source], locked_url: str | None
) -> str:
    """The reply in Markdown: the answer in the first line, then what was understood, then the
    footnotes.

    Addresses below `locked_url` need an API key, which a link cannot send: they are no links.
    """
    answers = result["answers"]
    nothing = result["no_answer_confidence"]
    marks = " " + "".join(f"[{source.number}]" for source in sources)
    certainty = result["certainty"]
    wording = WORDINGS[result.get("kind", "answer")][certainty]
    if not answers:
        parts = [f"{wording.heading}: no passage seems to hold one."]
    else:
        best = answers[0]
        text = _in_one_line(best["text"])
        if certainty == "none":
            guess = f"{wording.guess}: {text}{marks} ({best['confidence']:.0%} sure)."
            reason = f"{wording.heading} in the passages ({nothing:.0%} sure of that)."
            if "promise" in result:
                reason = f"{WITHHELD}."
            parts = [reason, guess]
        elif wording.reason:
            parts = [f"{wording.reason}. {wording.heading}{marks}:", f"> {text}"]
        elif certainty == "perhaps":
            parts = [f"{wording.heading}: {text}{marks}"]
        else:
            parts = [text + marks]
        if best.get("note"):
            parts.append(f"Note: {best['note']}.")
    if result.get("notice"):
        parts.append(f"Note: {result['notice']}.")
    if "promise" in result:
        parts.append(f"Promised: {Promise(**result['promise'])}.")
    if result["question"] != understood:
        parts.append(_UNDERSTOOD + understood)
    if sources:
        parts.append("  \n".join(_footnote(source, locked_url) for source in sources))
    return "\n\n".join(parts)


def _footnote(source: Source, locked_url: str | None) -> str:
    name = source.title or source.passage_id
    if source.path and not source.path.startswith(_WEB):
        name = f"{name} ({Location(source.path, source.page)})"
    name = _in_one_line(name)
    name = re.sub(r"([\\\[\]<>])", r"\\\1", name)
    if locked_url is not None and source.link.startswith(locked_url):
        return f"[{source.number}] {name}"
    link = source.link.replace(">", "%3E").replace("<", "%3C")
    return f"[{source.number}] [{name}](<{link}>)"


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, most: int | None) -> tuple[str, Literal["stop", "length"]]:
    """The first words and marks of a reply, and OpenAI's reason for its end."""
    words = simple_tokenize(text)
    if most is None or len(words) <= most:
        return text, "stop"
    end = 0
    for word in words[:most]:
        end = text.index(word, end) + len(word)
    return text[:end], "length"


def _count(texts: Iterable[str]) -> int:
    """Words and punctuation marks, in place of tokens, of which the readers have no common ones."""
    return sum(len(simple_tokenize(text)) for text in texts)


@router.post("/v1/embeddings", tags=["chat"], response_model=EmbeddingsOut)
async def embeddings(body: EmbeddingsRequest, request: Request, engine: AppEngine) -> Response:
    """The vectors that the index's encoder makes; their inner product with those of passages is the
    score.
    """
    scope = engine.scope(request, shelf_of(body.model, engine))
    # Vectors of several encoders cannot be compared.
    engine.shelf(scope)
    job = Job("embed", scope, side=body.input_type)
    encoded = await engine.run(request, job, body.input)
    if len({result["index_version"] for result in encoded}) > 1:  # perhaps with another encoder
        message = "the index was replaced while its encoder was used"
        raise refused("index_changed", message, 1)
    vectors = np.stack([result["vector"] for result in encoded])  # (n, D)
    if body.dimensions not in (None, vectors.shape[1]):
        message = f"dimensions is {body.dimensions}, the vectors have {vectors.shape[1]}"
        raise invalid_request(message, "leave it out")
    shown: list[Any] = vectors.tolist()
    if body.encoding_format == "base64":
        shown = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
    data = [
        {"object": "embedding", "index": number, "embedding": each}
        for number, each in enumerate(shown)
    ]
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), _count(body.input))
    return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": usage})
