"""Thresholds on a confidence that promise how often answers are wrong: Learn then Test.

A system that answers only where its confidence reaches a threshold is selective, and the share of
questions that it answers is its coverage. What is judged may be an answer, a verdict on a claim, or
anything else that has a confidence and is right or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Bool, Float64, Int64
from rag.core.errors import ConfigError, DataError
from rag.core.types import Given, Promise
from rag.metrics.calibration import checked_confidences

# The sequence begins with the first threshold whose chance to pass is so near to the best chance.
_NEARLY = 0.02
_THRESHOLDS = np.arange(10) / 10


@dataclass(frozen=True, slots=True)
class Limits:
    """What is to be promised.

    Attributes:
        max_error: at most this share of the given answers is wrong.
        confidence: probability, over the draw of the judged questions, that the promise holds.
        max_false_answers: at most this share of the questions without an answer gets one; None:
            nothing is promised about them.

    Raises:
        ConfigError: a value is not between 0 and 1.
    """

    max_error: float
    confidence: float = 0.95
    max_false_answers: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0.0 < value < 1.0:
                raise ConfigError(
                    f"{{{name}}} is {value}, expected a share between 0 and 1",
                    hint="10 % is 0.1",
                    arguments=(name,),
                )


class TradeOff(NamedTuple):
    """What comes of giving only the answers that reach a confidence.

    Attributes:
        threshold: the least confidence of an answer that is given.
        given: share of the questions that get an answer.
        right: share of the given answers that are right; NaN if none is given.
        refused: share of the questions without an answer that get none; NaN if all have one.
    """

    threshold: float
    given: float
    right: float
    refused: float


def measure_trade_offs(
    confidences: npt.ArrayLike, is_right: npt.ArrayLike, has_no_answer: npt.ArrayLike
) -> list[TradeOff]:
    """The risk-coverage curve, at thresholds of 0, 0.1, … 0.9.

    Args:
        confidences: (n,) in [0, 1].
        is_right: (n,) whether what would be given is right.
        has_no_answer: (n,) questions for which nothing right can be given.

    Example:
        >>> measure_trade_offs([0.9, 0.6, 0.2], [True, False, False], [False, False, True])[5]
        TradeOff(threshold=0.5, given=0.6666666666666666, right=0.5, refused=1.0)

    Source:
        El-Yaniv and Wiener 2010, "On the Foundations of Noise-free Selective Classification".
    """
    confidence = checked_confidences(confidences)
    right = np.asarray(is_right, bool)
    absent = np.asarray(has_no_answer, bool)
    curve = []
    for threshold in _THRESHOLDS.tolist():
        is_given = confidence >= threshold
        shares = (is_given, right[is_given], ~is_given[absent])
        curve.append(TradeOff(threshold, *map(_share, shares)))
    return curve


def _share(is_met: Bool) -> float:
    return float(is_met.mean()) if len(is_met) else float("nan")


def needed_sample(wrong: int, limit: float, confidence: float = 0.95) -> int:
    """How many outcomes show that a rate is at most `limit`, if `wrong` of them are wrong.

    Example:
        >>> [needed_sample(wrong, 0.1) for wrong in (0, 1, 2, 5, 10)]
        [29, 46, 61, 103, 167]
    """
    from scipy.stats import nbinom

    # At a rate of `limit`, more than `wrong` of so many are wrong with this confidence.
    return int(nbinom.ppf(confidence, wrong + 1, limit)) + wrong + 1


def fit_threshold(
    confidences: npt.ArrayLike,
    is_wrong: npt.ArrayLike,
    limits: Limits,
    *,
    has_no_answer: npt.ArrayLike | None = None,
    given: Given = "answers",
) -> Promise:
    """Choose the least threshold that keeps the limits.

    The thresholds are tested from strict to lenient, each with the exact binomial tail of its given
    and its wrong answers, until one fails; the last that passed is taken. Two limits are tested
    together by the larger of their p-values. The sequence begins where the test is likely to pass
    if the confidences are right, which is chosen by the confidences alone: too few answers cannot
    pass, and one wrong answer among few would end the sequence.

    Args:
        confidences: (n,) in [0, 1]; 0 where there is nothing to give.
        is_wrong: (n,) whether what would be given is wrong.
        has_no_answer: (n,) questions without an answer, for `limits.max_false_answers`.
        given: what messages call that which is judged.

    Raises:
        DataError: the sample is too small, or no threshold keeps the limits; the message states the
            number needed.

    Example:
        >>> promise = fit_threshold([0.9] * 60 + [0.2] * 40, [False] * 60 + [True] * 40, Limits(0.1))
        >>> promise.threshold, promise.coverage, promise.n
        (0.9, 0.6, 100)

    Source:
        Angelopoulos et al. 2021, "Learn then Test: Calibrating Predictive Algorithms to Achieve
        Risk Control", sections 2 and 3 (fixed sequence testing, several risks).

    Note:
        Thresholds are confidences of the sample itself. This is exact if surer answers are not wrong
        more often: the sample then decides alone how many lie above the last one that keeps the limit.
    """
    confidence, wrong, absent = _sorted(confidences, is_wrong, has_no_answer)
    # Answers of equal confidence are given together; without confidence there is none to give.
    is_last = np.append(np.diff(confidence) < 0, True)
    rows = np.flatnonzero(is_last & (confidence > 0))
    expected = np.cumsum(1.0 - confidence)[rows]
    tests = [_Test(given, limits.max_error, np.cumsum(wrong)[rows], rows + 1, expected)]
    if limits.max_false_answers is not None:
        n = np.full_like(rows, absent.sum())
        # An answer to a question without one is wrong, so that no more of them are expected.
        least = np.minimum(expected, n)
        limit = limits.max_false_answers
        tests.append(_Test("questions without an answer", limit, np.cumsum(absent)[rows], n, least))
    last = rows[_last_passed(tests, limits.confidence)]
    return Promise(
        limits.max_error,
        limits.confidence,
        coverage=round((int(last) + 1) / len(confidence), 4),
        n=len(confidence),
        threshold=float(confidence[last]),
        max_false_answers=limits.max_false_answers,
    )


@dataclass(frozen=True, slots=True)
class _Test:
    """Tests at each threshold (T,), from strict to lenient, that a rate is at most `limit`.

    Attributes:
        what: what the rate is of.
        wrong, n: (T,) how many are wrong, of how many.
        expected: (T,) how many are wrong by the confidences.
    """

    what: str
    limit: float
    wrong: Float64
    n: Int64
    expected: Float64

    def p_values(self) -> Float64:
        """Probabilities of so few wrong ones at a rate of `limit`: P(Bin(n, limit) ≤ wrong)."""
        from scipy.stats import binom

        return np.asarray(binom.cdf(self.wrong, self.n, self.limit), np.float64)

    def chance_to_pass(self, level: float) -> Float64:
        """Probability that p is at most `level`, by the confidences."""
        from scipy.stats import binom

        most_wrong = binom.ppf(level, self.n, self.limit) - 1
        rate = self.expected / np.maximum(self.n, 1)
        return np.asarray(binom.cdf(most_wrong, self.n, rate), np.float64)


def _last_passed(tests: list[_Test], confidence: float) -> int:
    """The last threshold of the sequence at which all tests pass; a DataError if there is none."""
    level = 1.0 - confidence
    chance = np.min([test.chance_to_pass(level) for test in tests], axis=0)
    if not chance.any():
        raise _refusal(tests, -1, confidence)
    begin = int(np.argmax((chance > 0) & (chance >= chance.max() - _NEARLY)))
    p_values = np.max([test.p_values() for test in tests], axis=0)
    n_passed = int(np.argmin(np.append(p_values[begin:] <= level, False)))
    if not n_passed:
        raise _refusal(tests, begin, confidence)
    return begin + n_passed - 1


def _sorted(
    confidences: npt.ArrayLike, is_wrong: npt.ArrayLike, has_no_answer: npt.ArrayLike | None
) -> Float64:
    """Confidences, wrong ones and questions without an answer (3, n), the surest first."""
    confidence = checked_confidences(confidences)
    absent = np.zeros_like(confidence) if has_no_answer is None else has_no_answer
    columns = np.array([confidence, is_wrong, absent], np.float64)
    return columns[:, np.argsort(-confidence, kind="stable")]


def _refusal(tests: list[_Test], row: int, confidence: float) -> DataError:
    """Why no test passed at a threshold, with the number that would be needed."""
    for test in tests:
        n = int(test.n[row]) if len(test.n) else 0
        wrong = int(test.wrong[row]) if len(test.n) else 0
        least = needed_sample(0, test.limit, confidence)
        needed = needed_sample(wrong, test.limit, confidence)
        if needed > n:
            break
    message = f"{wrong} of the first {n} {test.what} are wrong: with {wrong}, {needed} are needed"
    if n < least:
        message = f"{n} {test.what} to judge, expected at least {least} even if none is wrong"
    hint = "allow a larger share, or give a larger sample if they are wrong less often than that"
    return DataError(f"{message} to promise a share of at most {test.limit:.3g}", hint=hint)
