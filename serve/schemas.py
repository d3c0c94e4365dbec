"""Models of requests and responses: they validate input and describe the API in OpenAPI."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from rag.core.types import Answer, AnswerSet, Evidence, FirstStage, Hit, Passage
from rag.core.unicode import is_unicode
from rag.data.filters import Filter, FilterError
from serve.errors import invalid_request
from serve.settings import ServeSettings


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    question: StrictStr | None = Field(None, description="one question")
    questions: list[StrictStr] | None = Field(None, description="several questions, answered in this order")
    top_k: StrictInt | None = Field(None, ge=1, description="passages to retrieve for each question")
    index: StrictStr | None = Field(
        None, description="name of one of the server's indexes; null: the default"
    )
    filter: dict[str, Any] | None = Field(
        None,
        description="only passages that meet all conditions: path (patterns such as guide/*), document, or "
        'metadata fields; each with a value, a list of values, or bounds such as {"gte": 2020}',
        examples=[{"path": "guide/*"}],
    )

    @model_validator(mode="after")
    def _has_one_form(self) -> _Request:
        if (self.question is None) == (self.questions is None):
            raise ValueError("give either 'question' (a string) or 'questions' (a list of strings)")
        return self

    @property
    def is_batch(self) -> bool:
        """Whether the answer is a list."""
        return self.questions is not None

    def checked_questions(self, settings: ServeSettings) -> list[str]:
        """The questions, stripped and within the server's limits.

        Raises:
            ApiError: 422; the message states which question breaks which limit.
        """
        raw = self.questions if self.questions is not None else [self.question or ""]
        if not raw:
            raise invalid_request("'questions' is empty", "send at least one question")
        if len(raw) > settings.max_questions_per_request:
            raise invalid_request(
                f"{len(raw)} questions in one request, the limit is {settings.max_questions_per_request}",
                "send several requests",
            )
        names = [f"questions.{number}" if self.is_batch else "question" for number in range(len(raw))]
        return [checked_question(name, text, settings) for name, text in zip(names, raw, strict=True)]

    def checked(self, name: str, default: int, most: int) -> int:
        """`top_k` or `n_best`, or its default.

        Raises:
            ApiError: 422; the value is above the server's limit.
        """
        given = getattr(self, name)
        value: int = default if given is None else given
        if value > most:
            raise invalid_request(f"{name} is {value}, at most {most} is accepted", f"lower {name}")
        return value


class AskRequest(_Request):
    """One question or several."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"question": "Where does the Danube rise?"},
                {"questions": ["Where does the Danube rise?", "Who wrote Faust?"], "top_k": 20, "n_best": 3},
            ]
        }
    )

    n_best: StrictInt | None = Field(None, ge=1, description="answers to return at most, for each question")


class RetrieveRequest(_Request):
    """One question or several, for passages without answers."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"question": "Where does the Danube rise?", "top_k": 10}]}
    )


class ReloadRequest(BaseModel):
    """The index to open again; the default one unless it is named."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: StrictStr | None = None


def checked_filter(given: dict[str, Any] | None) -> Filter | None:
    """The filter of a request.

    Raises:
        ApiError: 422; it is not of the right form.
    """
    try:
        return Filter.parse(given)
    except FilterError as error:
        raise invalid_request(error.message, error.hint) from None


def checked_question(name: str, text: str, settings: ServeSettings) -> str:
    """The question, stripped and within the server's limits; `name` is its place in the request.

    Raises:
        ApiError: 422; it is empty, too long, or no valid Unicode.
    """
    question = text.strip()
    if not question:
        raise invalid_request(f"{name} is empty", "ask something")
    if len(question) > settings.max_question_chars:
        raise invalid_request(
            f"{name} has {len(question)} characters, at most {settings.max_question_chars} are accepted",
            "shorten the question",
        )
    if not is_unicode(question):
        raise invalid_request(f"{name} holds half of a surrogate pair", "send text that is valid Unicode")
    return question


class LocationOut(BaseModel):
    """File, page (or slide) and headings; empty fields are left out.

    The page is the one on which an answer, or else a passage, begins.
    """

    path: str
    page: str = ""
    headings: list[str] = []


class PassageOut(BaseModel):
    """A passage; with `location` if it comes from a file."""

    passage_id: str
    title: str
    text: str
    location: LocationOut | None = None
    metadata: dict[str, Any] | None = None


class PassageAroundOut(PassageOut):
    """A passage; with `before` and `after`, passages of its document, if the request wants them."""

    before: list[PassageOut] | None = None
    after: list[PassageOut] | None = None


class HitOut(PassageOut):
    """A retrieved passage; larger scores are better. With `first_stage` if it was re-ranked."""

    score: float
    first_stage: FirstStage | None = None


def passage_json(passage: Passage) -> dict[str, Any]:
    """A passage in the shape of `PassageOut`."""
    shown = passage.to_json()
    return {"passage_id": shown.pop("id"), **shown}


def hit_json(hit: Hit, passage: Passage) -> dict[str, Any]:
    """A hit in the shape of `HitOut`."""
    first = {} if hit.first_stage is None else {"first_stage": asdict(hit.first_stage)}
    return {**passage_json(passage), "score": float(hit.score), **first}


class EvidenceOut(HitOut):
    """Passage and place: `text[start:end]`, counted in Unicode code points, is the answer.

    Both are null where the answer does not occur literally, such as "yes". `supporting` has start and end of
    the sentences that support the answer; it is left out if none are marked.
    """

    start: int | None
    end: int | None
    supporting: list[list[int]] = []


class AnswerOut(BaseModel):
    """A short answer; `confidence` is the probability that it is right.

    `path` has the supporting passages, hop by hop; it is left out if there is only one. `weights` has each
    passage's share of the answer's probability, by passage id, if the reader computes it. `citations` are the
    passages that a language model cites, if not `evidence` alone; `is_supported` is false if they do not
    contain the answer, and `note` describes what is unusual about them.
    """

    text: str
    score: float
    confidence: float
    evidence: EvidenceOut
    path: list[EvidenceOut] = []
    weights: dict[str, float] = {}
    citations: list[EvidenceOut] = []
    is_supported: bool = True
    note: str = ""


_EVIDENCE = Evidence(
    "danube-1", "Danube", "The Danube rises in the Black Forest and flows into the Black Sea.", 20, 36, 0.71
)
_EXAMPLE = AnswerSet(
    "Where does the Danube rise?",
    (Answer("the Black Forest", 9.1, 0.93, _EVIDENCE),),
    no_answer_confidence=0.04,
    index_version="3f9c2a71",
    timings_ms={"queue": 0.4, "search": 6.2, "read": 148.0, "total": 156.1},
    reading={"passages": 5, "dropped": 1, "token_layers": 4218},
)


class AnswerSetOut(BaseModel):
    """Answers to one question, best first; `no_answer_confidence` may exceed all their confidences.

    `kind` is "list" where the question asks for several things and the first answer is a whole list of its
    passage, one entry a line. It is "passage" where the question asks for yes or no and the reader cannot
    tell: each `text` is then no answer, but a sentence that bears on the question, with the confidence that
    it does. It is "parts" where the question is two: `parts` then has the answers to each, `answers` the
    first answer of each part that has one, and `no_answer_confidence` is for neither having one. Otherwise it
    is left out.
    `partial` names the parts of the index that did not answer in time; it is left out if all did.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE.to_json()]})

    question: str
    kind: Literal["answer", "list", "passage", "parts"] = "answer"
    answers: list[AnswerOut]
    no_answer_confidence: float
    index_version: str
    timings_ms: dict[str, float]
    reading: dict[str, int] | None = None
    notice: str = Field(
        "", description="reason to doubt every answer, such as a language unknown to the models"
    )
    partial: list[str] = []
    parts: list[AnswerSetOut] = []


class BatchAnswersOut(BaseModel):
    """One entry per question, in the order of the request."""

    results: list[AnswerSetOut]


class HitsOut(BaseModel):
    """Passages retrieved for one question, best first."""

    question: str
    hits: list[HitOut]
    index_version: str
    timings_ms: dict[str, float]
    partial: list[str] = []


class BatchHitsOut(BaseModel):
    """One entry per question, in the order of the request."""

    results: list[HitsOut]


class IndexOut(BaseModel):
    """An index that is served."""

    index_version: str
    n_passages: int


class StatusOut(BaseModel):
    """State of the server: its default index, and all indexes by name where there are several."""

    status: str
    index_version: str | None = None
    n_passages: int | None = None
    indexes: dict[str, IndexOut] = {}


class ReloadOut(IndexOut):
    """The index now served and the one it replaced."""

    previous_index_version: str | None


class ErrorBody(BaseModel):
    """What went wrong and what to do."""

    code: str
    message: str
    hint: str
    request_id: str


class ErrorOut(BaseModel):
    """Shape of every error."""

    error: ErrorBody


class ChatErrorBody(BaseModel):
    """An error in OpenAI's shape; the hint is part of the message."""

    message: str
    type: str
    param: str | None
    code: str


class ChatErrorOut(BaseModel):
    """Shape of errors on the routes that OpenAI's clients call."""

    error: ChatErrorBody


def add_limits(schema: dict[str, Any], settings: ServeSettings) -> None:
    """Write this server's limits into its OpenAPI description."""
    limits: dict[str, dict[str, int]] = {
        "question": {"minLength": 1, "maxLength": settings.max_question_chars},
        "top_k": {"maximum": settings.max_top_k},
        "n_best": {"maximum": settings.max_n_best},
    }
    for model in ("AskRequest", "RetrieveRequest"):
        properties = schema["components"]["schemas"][model]["properties"]
        for name, values in limits.items():
            if name in properties:
                properties[name]["anyOf"][0].update(values)
        questions = properties["questions"]["anyOf"][0]
        questions.update({"minItems": 1, "maxItems": settings.max_questions_per_request})
        questions["items"].update(limits["question"])
