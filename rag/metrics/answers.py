"""Exact match and F1 of many predictions at once, under a named profile; the rules are in `rag.data.text`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rag.core.errors import DataError
from rag.data.text import REGEX_PROFILES, Profile, exact_match, f1


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """Scores of every question, in the order given.

    Attributes:
        em: (n,) 1.0 or 0.0; NaN where the question has no accepted answer.
        f1: (n,) in [0, 1]; NaN where the question has no accepted answer, and everywhere for regular
            expressions.
    """

    em: npt.NDArray[np.float64]
    f1: npt.NDArray[np.float64]


def score_answers(
    predictions: Sequence[str | None], answers: Sequence[Sequence[str]], profile: Profile = "squad"
) -> AnswerScores:
    """EM and F1 of every prediction: the best over the accepted answers.

    Args:
        predictions: (n,) one short answer per question; None or "" for a missing one, which scores 0
            (but "" equals an accepted answer that normalises to nothing, as in the official scripts).
        answers: (n,) accepted answers of each question.
        profile: see `rag.data.text`.

    Raises:
        DataError: if the two differ in number.
        ConfigError: unknown profile.

    Example:
        >>> scores = score_answers(["the Eiffel Tower!", None], [["Eiffel tower", "tower"], ["x"]])
        >>> scores.em.tolist(), scores.f1.tolist()
        ([1.0, 0.0], [1.0, 0.0])
    """
    if len(predictions) != len(answers):
        raise DataError(f"{len(predictions)} predictions for {len(answers)} questions, expected one each")
    n = len(predictions)
    em, best_f1 = np.full(n, np.nan), np.full(n, np.nan)
    for index, (prediction, accepted) in enumerate(zip(predictions, answers, strict=True)):
        if not accepted:
            continue
        em[index] = prediction is not None and exact_match(prediction, accepted, profile)
        if profile not in REGEX_PROFILES:
            best_f1[index] = 0.0 if prediction is None else f1(prediction, accepted, profile)
    return AnswerScores(em, best_f1)
