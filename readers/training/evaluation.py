"""Exact match and F1 by the official SQuAD v1.1 rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag.core.types import Passage
from rag.metrics.answers import score_answers
from readers.protocols import Reader
from readers.training.data import SquadQuestion

__all__ = ["gold_paragraph_scores"]

_CHUNK = 256


def gold_paragraph_scores(reader: Reader, questions: Sequence[SquadQuestion]) -> dict[str, float]:
    """EM and F1 in percent when each question is read with its own paragraph alone."""
    predictions: list[str] = []
    for begin in range(0, len(questions), _CHUNK):
        part = questions[begin : begin + _CHUNK]
        passages = [[Passage(q.id, q.title, q.context)] for q in part]
        results = reader.read([q.question for q in part], passages, [[1.0]] * len(part), n_best=1)
        predictions += [result.answers[0].text if result.answers else "" for result in results]
    scores = score_answers(predictions, [question.answers for question in questions])
    return {
        name: round(100.0 * float(np.nan_to_num(values).sum()) / max(1, len(questions)), 2)
        for name, values in (("em", scores.em), ("f1", scores.f1))
    }
