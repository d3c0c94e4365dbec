"""A question's answers before their confidence is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Ranked:
    """One question's different answers, best first, and its null score (None: the model has none).

    Attributes:
        features: (5,) what predicts whether the first answer is right; empty without answers. 0: by
            how much it scores above the second; 1: in its passage, by how much the best span scores
            above "not here"; 2: the passage logit of its passage, 0 for a network without it; 3:
            logarithm of the answer's length in words plus 1; 4: share of the question's content
            words in and near the answer.
        reading: what was read for it, if that is counted: "passages" and "token_layers".
    """

    answers: Sequence[Span]
    null: float | None
    features: Float64 = field(default_factory=lambda: np.zeros(0))
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
