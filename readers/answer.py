"""A question's answers before their confidence is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rag.core.arrays import Float64
from rag.core.types import Answer, AnswerSet
from readers.protocols import ReadRequest


@dataclass(frozen=True, slots=True)
class Span:
    """An answer before its confidence is known.

    Attributes:
        passage_index: number of its passage in the question's list.
        place: first character of that passage's text and one past the last; None if the answer does
            not stand there literally ("yes", or the words of a generator).
    """

    text: str
    score: float
    passage_index: int
    place: tuple[int, int] | None = None


class AnswerFeatures(NamedTuple):
    """What predicts whether the first answer to a question is right, and whether the passages hold
    none.

    Attributes:
        lead: by how much the answer scores above the second.
        margin: by how much the best span of its passage scores above "not here".
        relevance: the passage logit of its passage; 0 for a network without such logits.
        length: logarithm of the number of its words plus 1.
        overlap: share of the question's content words in and near the answer.
    """

    lead: float = 0.0
    margin: float = 0.0
    relevance: float = 0.0
    length: float = 0.0
    overlap: float = 0.0

    @property
    def for_right(self) -> tuple[float, ...]:
        """Inputs of `Calibration.right`."""
        return (self.lead, self.margin, self.relevance, self.length)

    @property
    def for_absent(self) -> tuple[float, ...]:
        """Inputs of `Calibration.absent`."""
        return (self.margin, self.overlap)


@dataclass(frozen=True, slots=True)
class Ranked:
    """One question's different answers, best first, and its null score (None: the model has none).

    Attributes:
        features: of the first answer; of no use without answers.
        reading: what was read for it, if that is counted: "passages" and "token_layers".
    """

    answers: Sequence[Span]
    null: float | None
    features: AnswerFeatures = field(default_factory=AnswerFeatures)
    reading: Mapping[str, int] = field(default_factory=dict)

    @property
    def scores(self) -> Float64:
        """Scores of the answers."""
        return np.array([answer.score for answer in self.answers], np.float64)

    def answer_set(
        self, request: ReadRequest, likelihoods: tuple[Float64, float], n_best: int
    ) -> AnswerSet:
        """The best answers with their `likelihoods`, and that of no answer (1 if there is none)."""
        of_answers, of_none = likelihoods
        answers = []
        for span, p in zip(self.answers[:n_best], of_answers[:n_best].tolist(), strict=True):
            evidence = request.evidence(span.passage_index, span.place)
            answers.append(Answer(span.text, span.score, p, evidence))
        none = of_none if answers else 1.0
        return AnswerSet(request.question, tuple(answers), none, reading=self.reading)
