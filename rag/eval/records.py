"""The record that an evaluation keeps of each question: all that figures, report and prediction
files need.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from rag.core.types import JudgedSentence
from rag.data.files.rows import json_records
from rag.metrics.multihop import Fact


def _defined(scores: dict[str, float | None]) -> dict[str, float | None]:
    """The figures with None for NaN."""
    return {name: None if value != value else value for name, value in scores.items()}


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)


class StoredHit(_Stored):
    """A retrieved passage.

    Attributes:
        has_answer: an accepted answer stands in its text.
        is_gold: it is a gold passage; unset if the question names none.
        text: set for the first few.
    """

    id: str
    title: str
    score: float
    has_answer: bool = False
    is_gold: bool | None = None
    text: str | None = None


class StoredAnswer(_Stored):
    """An answer; `score` is the reader's."""

    text: str
    confidence: float
    score: float
    passage_id: str


class QuestionRecord(_Stored):
    """What came of a question, or of a claim. Fields that do not apply are not set, and not in the file.

    Attributes:
        answers: the accepted ones.
        scores: the figures; None where undefined.
        stage: the stage of `rag.eval.scoring.STAGES` that caused a miss.
        first_rank: rank of the first passage that holds an accepted answer, from 1.
        timings_ms: wall milliseconds by stage: the batch's time divided by its questions.
        confidence: that the prediction is right.
        evidence: the first answer's, as in answers over HTTP.
        reading: counts of the reader.
        prediction: the first answer; "" and None are "no answer".
        kind: what is shown, where that is not a short answer: a list, a passage.
        shown: its text.
        failure: why the passages could not be read.
        facts, gold_facts: sentences that support the answer, by title and number.
        groups: values of fields of the question set by which figures are grouped.
        paths: passage ids of the best paths, the best first.
        probabilities: of a claim's labels.
        sentences: title and number of the sentences that speak for the verdict on a claim.
        notice: why a claim was not judged.
        cited_sentences: of a reply in sentences that cite.
    """

    id: str
    question: str
    answers: list[str]
    scores: Annotated[dict[str, float | None], AfterValidator(_defined)]
    hits: list[StoredHit]
    timings_ms: dict[str, float]
    stage: str | None = None
    first_rank: int | None = None
    confidence: float | None = None
    no_answer_confidence: float | None = None
    evidence: Mapping[str, object] | None = None
    n_best: list[StoredAnswer] = []
    reading: dict[str, int | float] = {}
    prediction: str | None = None
    kind: str = "answer"
    shown: str | None = None
    failure: str = ""
    facts: list[Fact] | None = None
    gold_facts: list[Fact] = []
    groups: dict[str, str] = {}
    paths: list[list[str]] = []
    probabilities: dict[str, float] = {}
    sentences: list[Fact] = []
    notice: str = ""
    cited_sentences: list[JudgedSentence] = []

    def to_line(self) -> str:
        """The record as a line of JSON, without what is not set."""
        return json.dumps(self.model_dump(exclude_unset=True), ensure_ascii=False) + "\n"


def read_records(path: Path) -> Iterator[QuestionRecord]:
    """The records in a file."""
    return map(QuestionRecord.model_validate, json_records(path))
