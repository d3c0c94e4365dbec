"""Models of requests, which validate input, and shapes of responses.

Answers are described by the dataclasses of `rag.core.types`; their `to_json` leaves out what is empty.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from rag.core.types import AnswerSet, Hit, Passage

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


def passage_json(passage: Passage) -> dict[str, Any]:
    """A passage by its id, title and text; with location and metadata if it has such."""
    shown = passage.to_json()
    return {"passage_id": shown.pop("id"), **shown}


def hit_json(hit: Hit, passage: Passage) -> dict[str, Any]:
    """A passage with its score; with rank and score before re-ranking, if it was re-ranked."""
    first = {} if hit.first_stage is None else {"first_stage": asdict(hit.first_stage)}
    return {**passage_json(passage), "score": float(hit.score), **first}


class Answers(BaseModel):
    """One entry per question, in the order of the request."""

    results: list[AnswerSet]


AskOut = AnswerSet | Answers


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
