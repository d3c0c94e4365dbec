"""Models of requests, which validate input, and of responses, which describe the API in OpenAPI.

Answers are described by the dataclasses of `rag.core.types`; their `to_json` leaves out what is empty.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from rag.core.types import AnswerSet, FirstStage, Hit, Location, Passage

ResultT = TypeVar("ResultT")
MAX_QUESTION_CHARS = 1000
Text = Annotated[
    str,
    StringConstraints(strict=True, strip_whitespace=True, min_length=1, max_length=MAX_QUESTION_CHARS),
]
Name = Annotated[str, StringConstraints(strict=True)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Text | None = Field(None, description="one question", examples=["Where does the Danube rise?"])
    questions: list[Text] | None = Field(
        None, min_length=1, max_length=32, description="several questions, answered in this order"
    )
    top_k: int = Field(20, ge=1, le=100, strict=True, description="passages to retrieve for each question")
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
    def texts(self) -> list[str]:
        """The questions."""
        return self.questions or [self.question or ""]

    def shown(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """The results in the form of the request: those of several questions, or that of one."""
        return results[0] if self.questions is None else {"results": results}


class AskRequest(_Request):
    """One question or several."""

    n_best: int = Field(5, ge=1, le=20, strict=True, description="most answers to return for each question")


class RetrieveRequest(_Request):
    """One question or several, for passages without answers."""


class FeedbackRequest(BaseModel):
    """A judgement of one answer: right, wrong, or wrong with a better answer."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    answer: Text
    verdict: Literal["right", "wrong"]
    better_answer: Text | None = None
    passage_id: Text | None = None

    @model_validator(mode="after")
    def _fits(self) -> FeedbackRequest:
        if self.better_answer is not None and self.verdict == "right":
            raise ValueError("a right answer has no 'better_answer'")
        if any("\0" in text for text in (self.question, self.answer, self.better_answer or "")):
            raise ValueError("a text holds a NUL character; remove it")
        return self


class PassageOut(BaseModel):
    """A passage; with `location` if it comes from a file, with `metadata` if it has some.

    `before` and `after` are the passages around it in its document, if the request asks for them.
    """

    passage_id: str
    title: str
    text: str
    location: Location | None = None
    metadata: dict[str, Any] | None = None
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


class HitsOut(BaseModel):
    """Passages retrieved for one question, best first."""

    question: str
    hits: list[HitOut]
    index_version: str
    timings_ms: dict[str, float]


class Batch(BaseModel, Generic[ResultT]):
    """One entry per question, in the order of the request."""

    results: list[ResultT]


AskOut = AnswerSet | Batch[AnswerSet]
RetrieveOut = HitsOut | Batch[HitsOut]


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
