"""What a reader is: questions and their passages in, answers with their places out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rag.core.types import Answer, AnswerSet, Evidence, Hit, Passage

__all__ = ["ReadResult", "Reader", "SpanAnswer"]


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """One answer: the characters `start` to `end` (exclusive) of passage `passage_index`'s text.

    Attributes:
        text: exactly `passages[passage_index].text[start:end]`.
        score: larger is better; comparable within the question.
        confidence: calibrated probability that the answer is right, in [0, 1].
    """

    text: str
    score: float
    confidence: float
    passage_index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Answers of one question, best first, and the probability that the passages hold none."""

    answers: tuple[SpanAnswer, ...]
    no_answer_confidence: float

    def with_evidence(
        self,
        question: str,
        retrieved: Sequence[tuple[Hit, Passage]],
        index_version: str,
        timings_ms: Mapping[str, float],
    ) -> AnswerSet:
        """The same answers with the passages they stand in.

        Args:
            question: as it was asked.
            retrieved: the passages that were read, in the order they were given to the reader.
            index_version: of the index they came from.
            timings_ms: wall time of each stage in milliseconds.
        """
        answers = []
        for span in self.answers:
            hit, passage = retrieved[span.passage_index]
            evidence = Evidence(passage.id, passage.title, passage.text, span.start, span.end, hit.score)
            answers.append(Answer(span.text, span.score, span.confidence, evidence))
        return AnswerSet(question, tuple(answers), self.no_answer_confidence, index_version, timings_ms)


@runtime_checkable
class Reader(Protocol):
    """Anything that reads answers out of passages."""

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[Passage]],
        scores: Sequence[Sequence[float]],
        n_best: int = 5,
    ) -> list[ReadResult]:
        """Answer each question from its own passages.

        Args:
            questions: B questions.
            passages: for each question the passages to read, in any order.
            scores: for each passage its retrieval score (larger is better).
            n_best: most answers to return per question.

        Returns:
            B results in the order of the questions.
        """
        ...
