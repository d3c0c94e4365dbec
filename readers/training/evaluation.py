"""Exact match and F1 by the official SQuAD v1.1 rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rag.core.types import Passage
from rag.data.text import exact_match, f1
from readers.protocols import Reader
from readers.training.data import SquadQuestion

__all__ = ["gold_paragraph_scores", "squad_scores"]

_CHUNK = 256


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """{"em", "f1"} in percent over all questions of `answers`; a missing prediction counts as wrong.

    Example:
        >>> squad_scores({"1": "The red house"}, {"1": ["red house"], "2": ["blue"]})
        {'em': 50.0, 'f1': 50.0}
    """
    total = max(1, len(answers))
    em = sum(float(exact_match(predictions.get(key, ""), value)) for key, value in answers.items())
    overlap = sum(f1(predictions.get(key, ""), value) for key, value in answers.items())
    return {"em": round(100.0 * em / total, 2), "f1": round(100.0 * overlap / total, 2)}


def gold_paragraph_scores(reader: Reader, questions: Sequence[SquadQuestion]) -> dict[str, float]:
    """EM and F1 in percent when each question is read with its own paragraph alone."""
    predictions: dict[str, str] = {}
    for begin in range(0, len(questions), _CHUNK):
        part = questions[begin : begin + _CHUNK]
        passages = [[Passage(q.id, q.title, q.context)] for q in part]
        results = reader.read([q.question for q in part], passages, [[1.0]] * len(part), n_best=1)
        for question, result in zip(part, results, strict=True):
            predictions[question.id] = result.answers[0].text if result.answers else ""
    return squad_scores(predictions, {q.id: q.answers for q in questions})
