"""Exact match and F1 of a prediction, under a named profile; the rules are in `rag.data.text`."""

import math
from collections.abc import Sequence

from rag.data.text import REGEX_PROFILE, Profile, exact_match, f1


def em_and_f1(
    prediction: str | None, answers: Sequence[str], profile: Profile = "squad"
) -> tuple[float, float]:
    """EM and F1, each the best over the accepted answers.

    Args:
        prediction: None or "" for a missing one, which scores 0; but "" equals an accepted answer
            that normalises to nothing, as in the official scripts.

    Returns:
        NaN without accepted answers; for regular expressions there is no F1, which is NaN.

    Example:
        >>> em_and_f1("the Eiffel Tower!", ["Eiffel tower", "tower"]), em_and_f1(None, ["x"])
        ((1.0, 1.0), (0.0, 0.0))
    """
    if not answers:
        return math.nan, math.nan
    em = float(prediction is not None and exact_match(prediction, answers, profile))
    if profile == REGEX_PROFILE:
        return em, math.nan
    if prediction is None:
        return em, 0.0
    return em, f1(prediction, answers, profile)
