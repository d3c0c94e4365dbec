"""Exact match and F1 of many predictions at once, under a named profile.

The rules themselves live in `rag.data.text`; here every distinct string is normalised once, so that 100,000
predictions take seconds, and the figures are equal to scoring them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rag.core.errors import ConfigError, DataError
from rag.data.text import PROFILES, REGEX_PROFILES, Profile, exact_match, normalize_answer, overlap

__all__ = ["AnswerScores", "check_profile", "score_answers"]

_CACHED_STRINGS = 200_000


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


def check_profile(profile: str) -> Profile:
    """The profile if it exists.

    Raises:
        ConfigError: otherwise; the message lists the known ones.
    """
    if profile not in PROFILES:
        raise ConfigError(f"unknown answer profile {profile!r}", hint=f"use one of: {', '.join(PROFILES)}")
    return profile  # type: ignore[return-value]


def score_answers(
    predictions: Sequence[str | None], answers: Sequence[Sequence[str]], profile: str = "squad"
) -> AnswerScores:
    """EM and F1 of every prediction: the best over the accepted answers.

    Args:
        predictions: (n,) one short answer a question; None or "" for a missing one, which scores 0
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
    rules = check_profile(profile)
    if len(predictions) != len(answers):
        raise DataError(f"{len(predictions)} predictions for {len(answers)} questions, expected one each")
    n = len(predictions)
    em, best_f1 = np.full(n, np.nan), np.full(n, np.nan)
    is_regex = profile in REGEX_PROFILES
    empty_counts = profile == "squad2"
    normalized = lru_cache(maxsize=_CACHED_STRINGS)(lambda text: normalize_answer(text, rules))
    tokens = lru_cache(maxsize=_CACHED_STRINGS)(lambda text: frozenset(normalized(text).split()))
    for index, (prediction, accepted) in enumerate(zip(predictions, answers, strict=True)):
        if not accepted:
            continue
        if is_regex:
            em[index] = float(prediction is not None and exact_match(prediction, accepted, rules))
            continue
        if prediction is None:
            em[index] = best_f1[index] = 0.0
            continue
        target = normalized(prediction)
        em[index] = float(any(target == normalized(answer) for answer in accepted))
        if em[index] and target:
            best_f1[index] = 1.0
            continue
        words = tokens(prediction)
        best_f1[index] = max(
            overlap(prediction, answer, rules).f1
            if empty_counts or not words.isdisjoint(tokens(answer))
            else 0.0
            for answer in accepted
        )
    return AnswerScores(em, best_f1)
