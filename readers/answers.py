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
    em, f1 = zip(*map(em_and_f1, texts, answers, profiles), strict=True)
    overlaps = [overlap for overlap in f1 if not np.isnan(overlap)] or [0.0]
    shares = {"em": np.mean(em), "f1": np.mean(overlaps), "silent": texts.count(None) / len(texts)}
    return {name: round(100 * float(share), 2) for name, share in shares.items()}


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
    texts: list[str | None] = []
    for begin in range(0, len(examples), _BATCH_SIZE):
        batch = slice(begin, begin + _BATCH_SIZE)
        pairs = zip(examples[batch], passages[batch], strict=True)
        requests = [ReadRequest.of(example.question, listed) for example, listed in pairs]
        texts += first_answers(reader, requests)
    return answer_scores(texts, [e.answers for e in examples], [e.answer_profile for e in examples])
