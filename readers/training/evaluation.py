"""Exact match and F1 by the official SQuAD v1.1 rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag.core.types import Passage
from rag.data.text import f1
from readers.protocols import Reader
from readers.training.data import Example, is_right

__all__ = ["reading_scores"]

_CHUNK = 256
_RETRIEVED = 5  # passages read of a question that has no gold ones


def reading_scores(reader: Reader, examples: Sequence[Example]) -> dict[str, float]:
    """EM and F1 in percent when each question is read with its gold passages alone.

    Questions without gold passages are read with their first few others. An answer that is missing is wrong.
    """
    scores: list[tuple[float, float]] = []
    for begin in range(0, len(examples), _CHUNK):
        part = examples[begin : begin + _CHUNK]
        passages = [_passages(example) for example in part]
        given = [[1.0] * len(found) for found in passages]
        results = reader.read([example.question.text for example in part], passages, given, n_best=1)
        for example, result in zip(part, results, strict=True):
            text = result.answers[0].text if result.answers else ""
            right = float(is_right(text, example))
            overlap = right if example.question.answers_are_regex else f1(text, example.question.answers)
            scores.append((right, overlap))
    em, overlap = 100.0 * np.array(scores).reshape(-1, 2).sum(axis=0) / max(1, len(examples))
    return {"em": round(float(em), 2), "f1": round(float(overlap), 2)}


def _passages(example: Example) -> list[Passage]:
    gold = [candidate.passage for candidate in example.candidates if candidate.is_gold]
    return gold or [candidate.passage for candidate in example.candidates[:_RETRIEVED]]
