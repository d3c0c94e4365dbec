"""Uncertainty of a figure, and whether two systems differ: bootstrap, randomisation, McNemar, Holm.

All functions work on one value per question; random draws come from a seed. The resampling is scipy's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Float64
from rag.core.errors import DataError

_LEVEL = 0.95
RESAMPLES = 2000
_PERMUTATIONS = 9_999
# Numbers in memory while resampling: 16 MB of float64.
_BATCH_CELLS = 2_000_000


def json_values(values: Mapping[str, object]) -> dict[str, object]:
    """The values as JSON has them: None for NaN and the infinities.

    Example:
        >>> json_values({"loss": np.nan, "by group": [1.5, np.inf]})
        {'loss': None, 'by group': [1.5, None]}
    """
    stored: dict[str, object] = json.loads(json.dumps(values), parse_constant=lambda name: None)
    return stored


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the n questions where a figure is defined, with its percentile bootstrap
    interval.

    It is NaN if there are none, and its ends are NaN if there are fewer than two; `level` is the
    interval's coverage.
    """

    value: float
    low: float
    high: float
    n: int
    level: float = _LEVEL

    def __format__(self, spec: str) -> str:
        """The figure with its interval: "0.891 [0.882, 0.900]"."""
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def times(self, factor: float) -> Interval:
        """The same in another unit, or with another sign."""
        low, high = sorted((factor * self.low, factor * self.high))
        return replace(self, value=factor * self.value, low=low, high=high)

    def to_json(self) -> dict[str, object]:
        """A dict ready for `json.dumps`; undefined numbers become None."""
        return json_values(asdict(self))

    @classmethod
    def from_json(cls, values: Mapping[str, float | None]) -> Interval:
        """Inverse of `to_json`."""
        numbers: dict[str, Any] = {name: np.nan if v is None else v for name, v in values.items()}
        return cls(**numbers)


def bootstrap_of(
    statistic: Callable[..., Float64], *samples: npt.ArrayLike, seed: int = 0
) -> Interval:
    """A statistic of samples whose entries belong together, with its percentile bootstrap interval.

    Args:
        statistic: takes the samples and `axis`.
        samples: each (n,).
    """
    from scipy.stats import bootstrap as resample

    columns = [np.asarray(sample, np.float64) for sample in samples]
    n = len(columns[0])
    value = float(statistic(*columns, axis=-1)) if n else np.nan
    if n < 2:
        return Interval(value, np.nan, np.nan, n)
    resampled = resample(
        columns,
        statistic,
        paired=len(columns) > 1,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH_CELLS // n),
        confidence_level=_LEVEL,
        method="percentile",
        rng=seed,
    )
    low, high = map(float, resampled.confidence_interval)
    return Interval(value, low, high, n)


def bootstrap(values: npt.ArrayLike, *, seed: int = 0) -> Interval:
    """The mean over questions with its percentile bootstrap interval.

    Args:
        values: (n,), one per question; NaN where a figure is undefined for a question.

    Example:
        >>> figure = bootstrap([0.0, 1.0, 1.0, 1.0] * 100)
        >>> figure.value, figure.n, 0.70 < figure.low < 0.72, 0.78 < figure.high < 0.80
        (0.75, 400, True, True)

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    Note: if all values are 0, or all are 1, resampling shows no spread; then the exact binomial
        (Clopper-Pearson) interval is given, so that 0 of 5 does not read as "surely 0".
    """
    from scipy.stats import binomtest

    column = np.asarray(values, np.float64)
    defined = column[~np.isnan(column)]
    n = len(defined)
    if n > 1 and defined[0] in (0.0, 1.0) and (defined == defined[0]).all():
        mean = float(defined[0])
        ends = binomtest(int(mean) * n, n).proportion_ci(_LEVEL, "exact")
        return Interval(mean, float(ends.low), float(ends.high), n)
    return bootstrap_of(np.mean, defined, seed=seed)


def randomisation_test(differences: npt.ArrayLike) -> float:
    """Two-sided p-value of the paired randomisation test on a mean difference.

    Under the hypothesis that the systems are exchangeable, the sign of each question's difference
    is a coin flip. Up to 13 differing questions all sign patterns are enumerated; otherwise 9,999
    are drawn, and the p-value is never zero.

    Args:
        differences: (n,), one per question.

    Example:
        >>> randomisation_test([1, 1, 1, 1])
        0.125

    Source: Smucker, Allan and Carterette, CIKM 2007.
    """
    from scipy.stats import permutation_test

    difference = np.asarray(differences, np.float64)
    difference = difference[difference != 0.0]
    if len(difference) < 2:
        return 1.0
    result = permutation_test(
        (difference,),
        np.mean,
        permutation_type="samples",
        n_resamples=_PERMUTATIONS,
        batch=max(1, _BATCH_CELLS // len(difference)),
        rng=0,
    )
    return float(result.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values adjusted for the number of comparisons, in the order
    given.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(np.minimum(raised, 1.0))
    return adjusted.tolist()


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two systems on the same questions, one figure.

    Attributes:
        difference: mean(b) - mean(a) with its paired bootstrap interval, around 0 for systems that
            do not differ.
        p_value: two-sided, uncorrected.
        gained, ties, lost: number of questions that b is better on, equal on, and worse on.
    """

    difference: Interval
    p_value: float
    test: str
    gained: int
    ties: int
    lost: int


def _of_differences(difference: Float64) -> Interval:
    """The mean difference with its interval; if the systems are exchanged, only its signs change."""
    sign = -1.0 if difference.sum() < 0 else 1.0
    interval = bootstrap(sign * difference)
    # The exact interval of equal values is that of a share: it begins with 0, or ends with 1.
    if interval.value == interval.low == 0.0:
        # Either system could be the better one.
        interval = replace(interval, low=-interval.high)
    elif interval.value == interval.high == 1.0:
        # The system could be worse on all questions on which it need not be better.
        interval = replace(interval, low=2.0 * interval.low - 1.0)
    return interval.times(sign)


def compare_paired(a: npt.ArrayLike, b: npt.ArrayLike) -> PairedTest:
    """Compare two systems question by question, with the test that fits the values.

    If they are exchanged, the difference changes its sign, and all else stays.

    Args:
        a, b: (n,), one value per question; NaN where a figure is undefined.

    Example:
        >>> result = compare_paired([0, 1, 0, 1], [1, 1, 1, 0])
        >>> result.test, result.gained, result.ties, result.lost, result.difference.value
        ('mcnemar', 2, 1, 1, 0.25)
    """
    from scipy.stats import binomtest

    values = [np.asarray(side, np.float64) for side in (a, b)]
    shapes = [column.shape for column in values]
    if shapes[0] != shapes[1]:
        raise DataError(f"a paired test needs one value per question: found {shapes}")
    difference = values[1] - values[0]
    difference = difference[~np.isnan(difference)]
    gained = int((difference > 0).sum())
    lost = int((difference < 0).sum())
    test = "randomisation"
    if (np.isin(values, (0.0, 1.0)) | np.isnan(values)).all():
        test = "mcnemar"
        p_value = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    else:
        p_value = randomisation_test(difference)
    return PairedTest(
        _of_differences(difference), p_value, test, gained, len(difference) - gained - lost, lost
    )
