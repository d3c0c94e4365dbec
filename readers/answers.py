"""How many of a reader's answers are right, for validation while readers train."""

from collections.abc import Sequence

import numpy as np

from rag.core.types import Passage
from rag.data.examples import Example
from rag.data.text import Profile
from rag.metrics.answers import em_and_f1
from readers.protocols import Reader, ReadRequest

_BATCH_SIZE = 64


def answer_scores(
    texts: Sequence[str | None], answers: Sequence[Sequence[str]], profiles: Sequence[Profile]
) -> dict[str, float]:
    """{"em", "f1", "silent"} in percent; "silent" is the share of questions left without an answer.

    Args:
        texts: (n,) the best answer to each question, None without one.
        answers: (n,) accepted answers of each question.
        profiles: (n,) rules by which answers are compared. Patterns have no F1.
    """
    figures = np.array(list(map(em_and_f1, texts, answers, profiles)), float)  # (n, 2)
    overlaps = figures[~np.isnan(figures[:, 1]), 1]
    f1 = float(overlaps.mean()) if len(overlaps) else 0.0
    return {
        "em": round(100 * float(figures[:, 0].mean()), 2),
        "f1": round(100 * f1, 2),
        "silent": round(100 * texts.count(None) / len(texts), 2),
    }


def first_answers(reader: Reader, requests: Sequence[ReadRequest]) -> list[str | None]:
    """The best answer to each question, None where there is none."""
    results = reader.read(requests, n_best=1)
    return [result.answers[0].text if result.answers else None for result in results]


def reading_scores(
    reader: Reader, examples: Sequence[Example], passages: Sequence[Sequence[Passage]]
) -> dict[str, float]:
    """`answer_scores` of a reader that reads these passages of each example, all with equal
    scores.
    """
    questions = [example.question for example in examples]
    requests = list(map(ReadRequest.of, questions, passages))
    texts: list[str | None] = []
    for begin in range(0, len(requests), _BATCH_SIZE):
        texts += first_answers(reader, requests[begin : begin + _BATCH_SIZE])
    answers = [example.answers for example in examples]
    return answer_scores(texts, answers, [example.answer_profile for example in examples])
