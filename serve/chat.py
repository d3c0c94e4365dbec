"""What OpenAI's clients call: chat completions, vectors of texts, and the list of models."""

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Self
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from starlette.responses import JSONResponse, Response, StreamingResponse

from rag.core.types import Answer, AnswerSet, Evidence, Location, as_unicode
from rag.core.wording import WITHHELD, WORDINGS, Wording
from rag.data.filters import parse_filter
from rag.data.text import simple_tokenize
from rag.policies import GREETING
from serve.engine import Engine
from serve.errors import ApiError, describe, error_body, invalid_request, refused, timed_out
from serve.jobs import Ask, Embed
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
from serve.routes import MAX_QUESTION_CHARS, TEXT, AppEngine, LongText, base_url_of

MODEL = "openqa-rag"
_UNDERSTOOD = "Question as understood: "
_TASK = "### Task:"  # begins what Open WebUI asks models for by itself, such as titles of chats
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

router = APIRouter(tags=["chat"])


class TextPart(BaseModel):
    """A part of a message; the question has to be text, other parts of earlier messages are ignored."""

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

    @property
    def most_tokens(self) -> int | None:
        """The longest reply; None without a limit."""
        return self.max_completion_tokens or self.max_tokens

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
    input: list[LongText] = Field(
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


@router.get("/v1/models")
async def models(engine: AppEngine) -> ModelsOut:
    """The index as a model; of several shelves all together, and each."""
    names = [MODEL, *(f"{MODEL}/{shelf.name}" for shelf in engine.shelves if shelf.name)]
    return ModelsOut(data=[_model(name, engine) for name in names])


@router.get("/v1/models/{model:path}")
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
        raise ApiError(404, "model_not_found", message, hint="GET /v1/models lists them")
    return shelves.get(model)


def _model(name: str, engine: Engine) -> ModelOut:
    return ModelOut(id=name, created=engine.created_s, owned_by=MODEL)


@router.post(
    "/v1/chat/completions",
    response_model=Completion,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def chat(body: ChatRequest, request: Request, engine: AppEngine) -> Response:
    """The answer with marks [n] and footnotes, or plainly that none was found.

    For a question that follows up ("and its population?"), passages are searched for together with
    the one before it, and read for it alone; the reply shows both. A greeting is no question.

    Beside OpenAI's fields, the reply has `question`, `sources`, `confidence` and
    `no_answer_confidence`; in a stream, the last piece of the reply has them. Sentences of a
    language model are streamed as it writes them; what became of their citations follows. A limit
    of tokens waits for the whole reply.
    """
    shelf = shelf_of(body.model, engine)
    conditions = parse_filter(body.filter)
    message, previous = _last_questions(body.messages)
    try:
        message = TEXT.validate_python(message)
    except ValidationError as error:
        raise invalid_request(f"the last user message: {describe(error.errors()[0])}") from None
    if message.startswith(_TASK):
        hint = "let another model do it; in Open WebUI: Admin Settings, Interface, Task Model"
        raise invalid_request("this is a task for a language model, expected a question", hint)
    scope = engine.scope(request, shelf)
    reply = _ReplyMaker(body, request, engine, message)
    if GREETING.fullmatch(message):
        return _respond(reply, reply.whole(_GREETED))
    context = context_of(message, previous)
    job = Ask(scope=scope, top_k=_TOP_K, n_best=_N_BEST, filter=conditions, context=context)
    reply.understood = f"{context} {message}".strip()
    if not body.stream or body.most_tokens is not None:
        (result,) = await engine.run(request, job, [message])
        return _respond(reply, reply.answered(result.value))
    speech = _Speech(engine, request, job, message)
    first = await speech.next()
    if first is None:
        # An error before the first word is the status of the response.
        await speech.results
    return _stream(reply, _spoken(reply, speech, first))


class _Speech:
    """The words of an answer as they come, and then the answer.

    Attributes:
        results: the answer alone, see `Engine.run`.
    """

    def __init__(self, engine: Engine, request: Request, job: Ask, question: str) -> None:
        loop = asyncio.get_running_loop()
        self._limit_s = engine.settings.timeout_s
        self._pieces = asyncio.Queue[str | None]()

        def on_text(text: str) -> None:
            loop.call_soon_threadsafe(self._pieces.put_nowait, text)

        spoken = replace(job, on_text=on_text)
        self.results = asyncio.create_task(engine.run(request, spoken, [question]))
        self.results.add_done_callback(lambda _: self._pieces.put_nowait(None))

    async def next(self) -> str | None:
        """The next words; None once the answer is there, or has failed.

        Raises:
            ApiError: 504: they do not come in time, and are not waited for any more.
        """
        try:
            return await asyncio.wait_for(self._pieces.get(), self._limit_s)
        except TimeoutError:
            self.results.cancel()
            raise timed_out(self._limit_s) from None


class _ReplyMaker:
    """Makes replies to a request.

    Attributes:
        understood: the question as it is searched for.
    """

    def __init__(
        self, body: ChatRequest, request: Request, engine: Engine, understood: str
    ) -> None:
        self.body = body
        self.understood = understood
        self.scope = request.scope
        self._base_url = base_url_of(request)
        self._locked_url = self._base_url if engine.settings.knows_people else None
        self._n_prompt = _count(message.text for message in body.messages)
        self.id = f"chatcmpl-{request.state.request_id}"
        self.created_s = int(time.time())

    def answered(self, result: AnswerSet, spoken: str = "") -> Completion:
        """The reply with an answer.

        Args:
            spoken: the words of the answer that were streamed; the reply begins with them.
        """
        sources = _sources(result, self._base_url)
        content = _content(result, self.understood, sources, self._locked_url, spoken)
        confidence = result.best.confidence if result.best else None
        return self.whole(content, sources, confidence, result.no_answer_confidence)

    def whole(
        self,
        content: str,
        sources: Sequence[Source] = (),
        confidence: float | None = None,
        no_answer_confidence: float = 1.0,
    ) -> Completion:
        """The reply with this content."""
        content, reason = _cut(content, self.body.most_tokens)
        n_reply = _count([content])
        return Completion(
            id=self.id,
            created=self.created_s,
            model=self.body.model,
            choices=[Choice(message=Reply(content=content), finish_reason=reason)],
            usage=Usage(
                prompt_tokens=self._n_prompt,
                completion_tokens=n_reply,
                total_tokens=self._n_prompt + n_reply,
            ),
            question=self.understood,
            sources=list(sources),
            confidence=confidence,
            no_answer_confidence=no_answer_confidence,
        )


def _respond(reply: _ReplyMaker, completion: Completion) -> Response:
    """The reply as the request wants it: whole, or as events."""
    if not reply.body.stream:
        return JSONResponse(completion.model_dump())
    return _stream(reply, _written(completion))


def _stream(reply: _ReplyMaker, parts: AsyncIterator[str | Completion]) -> Response:
    # Words are of use as they come: nginx passes them on at once.
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(_events(reply, parts), headers=headers, media_type="text/event-stream")


async def _written(completion: Completion) -> AsyncIterator[str | Completion]:
    """The text of a reply, then the reply."""
    yield completion.choices[0].message.content
    yield completion


async def _spoken(
    reply: _ReplyMaker, speech: _Speech, piece: str | None
) -> AsyncIterator[str | Completion]:
    """The words of an answer as they come, then what is to be said of them, then the reply."""
    spoken = ""
    try:
        while piece is not None:
            # A link may come in two pieces.
            before = "]" if spoken.endswith("]") else ""
            inert = _without_links(before + piece)[len(before) :]
            spoken += inert
            yield inert
            piece = await speech.next()
        (result,) = await speech.results
        completion = reply.answered(result.value, spoken)
        # What was sent may end with white space, which the reply lacks.
        rest = completion.choices[0].message.content[len(spoken.rstrip()) :]
        if rest:
            yield rest
        yield completion
    finally:
        speech.results.cancel()


async def _events(reply: _ReplyMaker, parts: AsyncIterator[str | Completion]) -> AsyncIterator[str]:
    """Server-sent events: the parts of the reply, then its sources; the end mark closes the stream,
    unless an error ended it.
    """
    first = {
        "id": reply.id,
        "object": "chat.completion.chunk",
        "created": reply.created_s,
        "model": reply.body.model,
    }
    options = reply.body.stream_options or {}

    def event(delta: dict[str, str], reason: str | None = None, **more: object) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return f"data: {json.dumps({**first, 'choices': [choice], **more})}\n\n"

    yield event({"role": "assistant", "content": ""})
    try:
        async for part in parts:
            if isinstance(part, str):
                yield event({"content": part})
                continue
            last = part.model_dump(exclude={"choices", "usage", *first})
            yield event({}, part.choices[0].finish_reason, **last)
            if options.get("include_usage"):
                usage = {**first, "choices": [], "usage": part.usage.model_dump()}
                yield f"data: {json.dumps(usage)}\n\n"
    except ApiError as error:
        yield f"data: {json.dumps(error_body(error, reply.scope))}\n\n"
        return
    yield "data: [DONE]\n\n"


def _last_questions(messages: list[ChatMessage]) -> tuple[str, str]:
    """The last user message, and the one before it as it was understood, "" if there is none."""
    of_user = [number for number, message in enumerate(messages) if message.role == "user"]
    if not of_user:
        raise invalid_request("there is no message of the user", "end with the question")
    *earlier, last = of_user
    question = messages[last].text
    for part in messages[last].content or ():
        if isinstance(part, TextPart) and part.type != "text":
            message = f"a part of the question has the type {part.type[:40]!r}, expected 'text'"
            raise invalid_request(message, "images, sound and files are not read; leave them out")
    if not earlier:
        return question, ""
    previous = _cleaned(messages[earlier[-1]].text).strip()
    if GREETING.fullmatch(previous):
        return question, ""
    reply = "\n".join(message.text for message in messages[earlier[-1] + 1 : last])
    understood = (line for line in _cleaned(reply).splitlines() if line.startswith(_UNDERSTOOD))
    return question, next(understood, previous).removeprefix(_UNDERSTOOD)


def _cleaned(text: str) -> str:
    """An earlier message without the characters that no question may hold."""
    return as_unicode(text).replace("\0", " ")


def context_of(question: str, previous: str) -> str:
    """The earlier question, if this question follows up on it; "" if it stands alone, or both are
    too long together.

    Example:
        >>> context_of("And its population?", "What is the capital of France?")
        'What is the capital of France?'
        >>> context_of("Who wrote Faust?", "What is the capital of France?")
        ''
    """
    follows_up = _FOLLOWS_UP.search(question) is not None or len(question.split()) < _LEAST_WORDS
    return previous if follows_up and len(f"{previous} {question}") <= MAX_QUESTION_CHARS else ""


def _sources(result: AnswerSet, base_url: str) -> list[Source]:
    """The passages behind the answers: those they cite, or their paths, or their evidence."""
    best = result.best
    if best is None:
        return []
    passages = dict[tuple[str, str], Evidence]()
    for evidence in (*(best.citations or best.path), best.evidence):
        # Two shelves may have passages of the same id.
        passages.setdefault((evidence.shelf, evidence.passage_id), evidence)
    return [
        _source(number, evidence, base_url)
        for number, evidence in enumerate(passages.values(), start=1)
    ]


def _source(number: int, evidence: Evidence, base_url: str) -> Source:
    location = evidence.location or Location("")
    link = f"{base_url}v1/passages/{quote(evidence.passage_id)}"
    if evidence.shelf:
        link += f"?shelf={quote(evidence.shelf, safe='')}"
    if location.path.startswith(_WEB):
        link = location.path
    return Source(
        number=number,
        passage_id=evidence.passage_id,
        title=evidence.title,
        text=evidence.text,
        start=evidence.start,
        end=evidence.end,
        score=evidence.score,
        path=location.path,
        page=location.page,
        link=link,
    )


def _content(
    result: AnswerSet,
    understood: str,
    sources: list[Source],
    locked_url: str | None,
    spoken: str = "",
) -> str:
    """The reply in Markdown: the answer, or what was `spoken` of it, then notes, the question as it
    was understood, and the footnotes.

    Addresses below `locked_url` need an API key, which a link cannot send: they are no links.
    """
    best = result.best
    wording = WORDINGS[result.kind][result.certainty]
    paragraphs = [spoken.rstrip(), _no_answer(result, wording)]
    if best and not spoken:
        paragraphs.append(_best_answer(result, best, wording, sources))
    if best and best.note:
        paragraphs.append(f"Note: {best.note.rstrip('.')}.")
    if result.notice:
        paragraphs.append(f"Note: {result.notice}.")
    if result.promise:
        paragraphs.append(f"Promised: {result.promise.in_words('answers')}.")
    if result.question != understood:
        paragraphs.append(_UNDERSTOOD + understood)
    paragraphs.append("  \n".join(_footnote(source, locked_url) for source in sources))
    return "\n\n".join(filter(None, paragraphs))


def _no_answer(result: AnswerSet, wording: Wording) -> str:
    """The sentence that says that there is no answer; "" if there is one."""
    if not result.answers:
        return f"{wording.heading}: no passage seems to hold one."
    if result.certainty != "none":
        return ""
    if result.promise:
        return f"{WITHHELD}."
    return f"{wording.heading} in the passages ({result.no_answer_confidence:.0%} sure of that)."


def _best_answer(result: AnswerSet, best: Answer, wording: Wording, sources: list[Source]) -> str:
    """The first answer with the marks of its sources."""
    text = _without_links(_in_one_line(best.text))
    marks = " " + "".join(f"[{source.number}]" for source in sources)
    if result.certainty == "none":
        return f"{wording.guess}: {text}{marks} ({best.confidence:.0%} sure)."
    if wording.reason:
        return f"{wording.reason}. {wording.heading}{marks}:\n\n> {text}"
    if result.certainty == "perhaps":
        return f"{wording.heading}: {text}{marks}"
    return text + marks


def _without_links(text: str) -> str:
    r"""Markdown that links to nothing and loads nothing: others write the words of an answer.

    Example:
        >>> print(_without_links("![Seen](https://example.org/a.png) by <b>"))
        ![Seen]\(https://example.org/a.png) by &lt;b>
    """
    return text.replace("](", r"]\(").replace("<", "&lt;")


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
    """The number of words and punctuation marks; the readers have no tokens in common to count."""
    return sum(len(simple_tokenize(text)) for text in texts)


@router.post("/v1/embeddings", response_model=EmbeddingsOut)
async def embeddings(body: EmbeddingsRequest, request: Request, engine: AppEngine) -> Response:
    """The vectors that the index's encoder makes; their inner product with those of passages is the
    score.
    """
    scope = engine.scope(request, shelf_of(body.model, engine))
    # Vectors of several encoders cannot be compared.
    engine.shelf(scope)
    job = Embed(scope=scope, side=body.input_type)
    encoded = await engine.run(request, job, body.input)
    if len({result.index_version for result in encoded}) > 1:  # perhaps with another encoder
        message = "the index was replaced while its encoder was used"
        raise refused("index_changed", message, 1)
    vectors = np.stack([result.value for result in encoded])  # (n, D)
    if body.dimensions not in (None, vectors.shape[1]):
        message = f"dimensions is {body.dimensions}, the vectors have {vectors.shape[1]}"
        raise invalid_request(message, "leave it out")
    data = []
    for number, vector in enumerate(vectors):
        embedding: object = vector.tolist()
        if body.encoding_format == "base64":
            embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": number, "embedding": embedding})
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), _count(body.input))
    return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": usage})
