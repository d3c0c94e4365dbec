"""What the routes answer, as OpenAPI describes it; a body leaves out what is empty.

Answers and the parts of passages are the dataclasses of `rag.core.types`.
"""

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, computed_field

from rag.core.types import AnswerSet, Certainty, FirstStage, Location

Result = TypeVar("Result")


class Several(BaseModel, Generic[Result]):
    """One entry per question, in the order of the request."""

    results: list[Result]


@dataclass(frozen=True)
class AnswerSetOut(AnswerSet):
    """The answers to one question, best first; offsets count Unicode code points.

    `unavailable` names shelves that could not be asked.
    """

    unavailable: list[str] = field(default_factory=list)

    @computed_field(description='how the first answer is presented; "none": as no answer')  # type: ignore[prop-decorator]
    @property
    def certainty(self) -> Certainty:
        """That of the answers."""
        return super().certainty


class PassageOut(BaseModel):
    """A passage, and its location in the file that it comes from."""

    passage_id: str
    title: str
    text: str
    location: Location | None = None
    metadata: dict[str, Any] = {}
    shelf: str = ""


class NeighboursOut(PassageOut):
    """A passage, with those around it in its document if they were asked for."""

    before: list[PassageOut] = []
    after: list[PassageOut] = []


class HitOut(PassageOut):
    """A passage that was found; larger scores are better, comparable within one index only."""

    score: float
    first_stage: FirstStage | None = Field(
        default=None, description="before passages were re-ranked, or fused with other shelves"
    )


class HitsOut(BaseModel):
    """The passages for one question, best first."""

    question: str
    hits: list[HitOut]
    unavailable: list[str] = Field(default=[], description="shelves that could not be asked")
    index_version: str
    timings_ms: dict[str, float]


class FeedbackOut(BaseModel):
    """The record of a judgement."""

    id: str


class Alive(BaseModel):
    """The process serves HTTP."""

    status: Literal["alive"] = "alive"


class ShelfOut(BaseModel):
    """The index of a shelf."""

    index_version: str
    n_passages: int = Field(description="that everybody may read")
    read_only: str = Field(default="", description="why documents cannot be changed")


class IsReady(BaseModel):
    """Questions are answered; where keys are needed, more than this is told with a key."""

    status: Literal["ready"]


class Ready(IsReady, ShelfOut):
    """The index is loaded."""


class ShelvesReady(IsReady):
    """The shelves can be asked, without those in `unavailable`, which has the reasons."""

    shelves: dict[str, ShelfOut]
    unavailable: dict[str, str] = {}


class ModelOut(BaseModel):
    """The index, or a shelf, as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelsOut(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelOut]


class Source(BaseModel):
    """A passage behind an answer; the mark [n] of the reply gives its `number`."""

    number: int
    passage_id: str
    title: str
    text: str
    start: int | None
    end: int | None
    score: float
    path: str
    page: str
    link: str


class Reply(BaseModel):
    """A message of the assistant."""

    role: Literal["assistant"] = "assistant"
    content: str


class Choice(BaseModel):
    """The only reply."""

    index: int = 0
    message: Reply
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class Usage(BaseModel):
    """Words and punctuation marks, since the readers have no common tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """A reply with its sources; `question` and what follows it are not of OpenAI's protocol."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    question: str = Field(description="as it was searched for")
    sources: list[Source]
    confidence: float | None
    no_answer_confidence: float


class EmbeddingOut(BaseModel):
    """The vector of a text: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsOut(BaseModel):
    """The vectors of texts, in the order of the request."""

    object: Literal["list"]
    data: list[EmbeddingOut]
    model: str
    usage: dict[str, int]


class DocumentOut(BaseModel):
    """A document of the index; `sent` if it came over HTTP, not from the folder."""

    id: str
    passages: int
    sent: bool


class Remarks(BaseModel):
    """What is to be said of files that were sent."""

    unreadable: list[str] = Field(default=[], description="files that cannot be read, and why")
    notes: list[str] = Field(default=[], description="what conversion lost")


class DocumentsOut(Remarks):
    """Documents of the index; `next` is the value of `after` for those that follow."""

    documents: list[DocumentOut]
    index_version: str
    total: int
    next: str | None


class DeletedOut(BaseModel):
    """The document is not in the index; `deleted`: it was, before this request."""

    id: str
    deleted: bool
    index_version: str


class DocumentId(BaseModel):
    """A document that was sent."""

    id: str


class Accepted(Remarks):
    """A change that is on disk; `address` tells what became of it."""

    id: str
    status: Literal["waiting"]
    address: str
    documents: list[DocumentId] = []
