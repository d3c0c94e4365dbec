"""Uncertainty of a figure, and whether two systems differ: bootstrap, randomisation, McNemar, Holm.

All functions work on one value per question, (n,) or (n, m) for m figures at once. Random draws come from a
seed. Resampling n questions with replacement only needs to know how often each *distinct* row of values was
drawn, so the counts of distinct rows are drawn from a multinomial distribution: the same distribution as
drawing question by question, but the cost no longer grows with n when values repeat (EM, top-k hits).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Bool, Float64
from rag.core.errors import ConfigError, DataError

_CHUNK_CELLS = 2_000_000  # numbers held at once while resampling: 16 MB of float64
_EXACT_LIMIT = 16  # up to 2**16 sign patterns are enumerated instead of sampled


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its percentile bootstrap interval.

    Attributes:
        value: the mean over questions where the figure is defined; NaN if there are none.
        low, high: ends of the interval.
        n: number of questions where the figure is defined.
        level: coverage, for example 0.95.
    """

    value: float
    low: float
    high: float
    n: int
    level: float = 0.95

    def __format__(self, spec: str) -> str:
        """The figure with its interval.

        Example:
            >>> f"{Interval(0.8912, 0.8821, 0.9, 4958):.3f}"
            '0.891 [0.882, 0.900]'
        """
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def times(self, factor: float) -> Interval:
        """The same in another unit."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)

    def to_json(self) -> dict[str, Any]:
        """A dict ready for `json.dumps`; undefined numbers become None."""
        return {key: (None if isinstance(v, float) and np.isnan(v) else v) for key, v in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Interval:
        """Inverse of `to_json`."""
        given: dict[str, Any] = {key: np.nan if value is None else value for key, value in values.items()}
        return cls(**given)


def bootstrap(
    values: npt.ArrayLike, *, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> list[Interval]:
    """Percentile bootstrap interval of the mean of every column.

    Args:
        values: (n,) or (n, m), one row per question; NaN where a figure is undefined for a question.
        resamples: number of resampled question sets, at least 1,000.
        seed: seed of the random generator; the same seed gives the same interval.
        level: coverage in (0, 1).

    Returns:
        One interval per column, in column order. All columns share the resampled question sets.

    Raises:
        ConfigError: for fewer than 1,000 resamples or a level outside (0, 1).

    Example:
        >>> figure = bootstrap([0.0, 1.0, 1.0, 1.0] * 100)[0]
        >>> figure.value, figure.n, 0.70 < figure.low < 0.72, 0.78 < figure.high < 0.80
        (0.75, 400, True, True)

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    Note: if all values are 0, or all are 1, resampling shows no spread; then the exact binomial
        (Clopper-Pearson) interval is given, so that 0 of 5 does not read as "surely 0".
    """
    if resamples < 1000:
        raise ConfigError(
            f"{resamples} bootstrap resamples are too few for an interval, expected at least 1000"
        )
    if not 0.0 < level < 1.0:
        raise ConfigError(f"the level of an interval must lie between 0 and 1, found {level}")
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    defined = ~np.isnan(table)
    counts = defined.sum(axis=0)
    with np.errstate(invalid="ignore"):
        means = np.where(counts > 0, np.nansum(table, axis=0) / counts, np.nan)
    if len(table) == 0:
        return [Interval(float("nan"), float("nan"), float("nan"), 0, level) for _ in range(table.shape[1])]
    sampled = _resampled_means(np.where(defined, table, 0.0), defined, resamples, seed)  # (B, m)
    tail = (1.0 - level) / 2.0
    intervals = []
    for column, (mean, count) in enumerate(zip(means, counts, strict=True)):
        draws = sampled[:, column][~np.isnan(sampled[:, column])]
        low, high = np.quantile(draws, [tail, 1.0 - tail]) if len(draws) else (np.nan, np.nan)
        if count and mean in (0.0, 1.0) and np.isin(table[defined[:, column], column], (0.0, 1.0)).all():
            reach = 1.0 - tail ** (1.0 / count)
            low, high = (0.0, reach) if mean == 0.0 else (1.0 - reach, 1.0)
        intervals.append(Interval(float(mean), float(low), float(high), int(count), level))
    return intervals


def _resampled_means(filled: Float64, defined: Bool, resamples: int, seed: int) -> Float64:
    """Means of `resamples` question sets drawn with replacement, (B, m); NaN where no defined row was
    drawn."""
    generator = np.random.default_rng(seed)
    n, m = filled.shape
    rows, repeats = np.unique(np.concatenate([filled, defined], axis=1), axis=0, return_counts=True)
    if len(rows) * 4 > n:  # values hardly repeat: resample the questions themselves
        rows, repeats = np.concatenate([filled, defined], axis=1), np.ones(n, dtype=np.int64)
    distinct = len(rows)
    sums = np.empty((resamples, 2 * m))
    chunk = max(1, _CHUNK_CELLS // distinct)
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        if distinct == n:
            drawn = generator.integers(0, n, size=(size, n), dtype=np.int32)
            drawn += np.arange(size, dtype=np.int32)[:, None] * np.int32(n)
            weights = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        else:
            weights = generator.multinomial(n, repeats / n, size=size)
        sums[start : start + size] = weights.astype(np.float64) @ rows
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[:, m:] > 0, sums[:, :m] / sums[:, m:], np.nan)


def bootstrap_difference(a: npt.ArrayLike, b: npt.ArrayLike) -> Interval:
    """Paired bootstrap interval of mean(b) - mean(a) over questions where both are defined.

    Example:
        >>> same = bootstrap_difference([0, 1] * 10, [0, 1] * 10)
        >>> same.value, round(same.low, 2), round(same.high, 2)  # either could be the better one
        (0.0, -0.17, 0.17)
    """
    found = bootstrap(_paired(a, b))[0]
    return replace(found, low=-found.high) if found.value == found.low == 0.0 else found


def non_inferiority(a: npt.ArrayLike, b: npt.ArrayLike, margin: float, *, resamples: int = 10_000) -> float:
    """One-sided p-value against "b is worse than a by `margin` or more", by the paired bootstrap.

    p = (1 + resampled question sets with mean(b − a) ≤ −margin) / (1 + resamples): below 0.05 where the lower
    end of the 90 % interval of the difference lies above −margin.

    Args:
        a, b: (n,) values of the two systems; NaN where undefined.
        margin: the smallest loss that matters, above 0, in the units of the values.

    Raises:
        ConfigError: the margin is not above 0.
        DataError: no question has both values.

    Example:
        >>> same, worse = [1.0] * 300 + [0.0] * 200, [1.0] * 285 + [0.0] * 215
        >>> non_inferiority(same, same, 0.01) < 0.001, non_inferiority(same, worse, 0.01) > 0.9
        (True, True)

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 15.4; Piaggio et al., JAMA
        308 (2012), for the question.
    """
    if not margin > 0.0:
        raise ConfigError(f"a margin of non-inferiority must be above 0, found {margin}")
    difference = _paired(a, b)
    if len(difference) == 0:
        raise DataError("no question has both values: nothing to test")
    rows = difference[:, None]
    sampled = _resampled_means(rows, np.ones_like(rows, dtype=bool), resamples, seed=0)
    return (1 + int(np.count_nonzero(sampled <= -margin + 1e-12))) / (1 + resamples)


def _paired(a: npt.ArrayLike, b: npt.ArrayLike) -> Float64:
    """b - a without undefined questions."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(
            "a paired test needs one value per question from both systems, found shapes "
            f"{first.shape} and {second.shape}"
        )
    difference = second - first
    return difference[~np.isnan(difference)]


def randomisation_test(a: npt.ArrayLike, b: npt.ArrayLike, *, resamples: int = 10_000) -> float:
    """Two-sided p-value of the paired randomisation test on the difference of means.

    Under the hypothesis that the systems are exchangeable, the sign of each question's difference is a coin
    flip. Up to 16 differing questions all sign patterns are enumerated; otherwise `resamples` are drawn and
    p = (1 + extreme) / (1 + resamples), which is never zero.

    Args:
        a, b: (n,) values of the two systems; NaN where undefined.

    Example:
        >>> randomisation_test([0, 0, 0, 0], [1, 1, 1, 1])
        0.125

    Source: Smucker, Allan and Carterette, CIKM 2007.
    """
    difference = _paired(a, b)
    difference = difference[difference != 0.0]
    if len(difference) == 0:
        return 1.0
    observed = abs(difference.sum())
    threshold = observed - 1e-9 * max(1.0, np.abs(difference).sum())
    if len(difference) <= _EXACT_LIMIT:
        patterns = np.arange(2 ** len(difference))[:, None] >> np.arange(len(difference)) & 1
        return float(np.mean(np.abs((2.0 * patterns - 1.0) @ difference) >= threshold))
    generator = np.random.default_rng(0)
    magnitudes, repeats = np.unique(np.abs(difference), return_counts=True)
    few = len(magnitudes) * 8 <= len(difference)
    partial = None if few else _sums_by_byte(difference)
    extreme = 0
    chunk = max(1, _CHUNK_CELLS // (len(magnitudes) if partial is None else len(partial)))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        if partial is None:  # number of equal differences that stay positive
            heads = generator.binomial(repeats, 0.5, size=(size, len(magnitudes)))
            sums = (2.0 * heads - repeats) @ magnitudes
        else:  # eight coin flips per byte
            flips = generator.integers(0, 256, size=(size, len(partial)), dtype=np.uint8)
            sums = partial.ravel()[flips + np.arange(len(partial), dtype=np.int64) * 256].sum(axis=1)
        extreme += int(np.count_nonzero(np.abs(sums) >= threshold))
    return (1 + extreme) / (1 + resamples)


def _sums_by_byte(difference: Float64) -> Float64:
    """Signed sums of each group of eight differences under each of the 256 sign patterns, (groups, 256)."""
    groups = np.zeros(-(-len(difference) // 8) * 8)
    groups[: len(difference)] = difference
    signs = 2.0 * (np.arange(256)[None, :] >> np.arange(8)[:, None] & 1) - 1.0  # (8, 256)
    return groups.reshape(-1, 8) @ signs


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values adjusted for the number of comparisons, in the order given.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    order, n = np.argsort(p_values, kind="stable"), len(p_values)
    raised = np.asarray(p_values)[order] * np.arange(n, 0, -1)
    adjusted = np.empty(n)
    adjusted[order] = np.maximum.accumulate(np.minimum(raised, 1.0))
    return adjusted.tolist()


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two systems on the same questions, one figure.

    Attributes:
        difference: mean(b) - mean(a) with its paired bootstrap interval.
        p_value: two-sided, uncorrected.
        test: "mcnemar" for 0/1 values, else "randomisation".
        wins, ties, losses: how many questions b is better on, equal on, worse on.
        gained, lost: row numbers of the wins and of the losses.
    """

    difference: Interval
    p_value: float
    test: str
    wins: int
    ties: int
    losses: int
    gained: tuple[int, ...]
    lost: tuple[int, ...]


def compare_paired(a: npt.ArrayLike, b: npt.ArrayLike) -> PairedTest:
    """Compare two systems question by question, with the test that fits the values.

    Example:
        >>> result = compare_paired([0, 1, 0, 1], [1, 1, 1, 0])
        >>> result.test, result.wins, result.ties, result.losses, result.difference.value, result.lost
        ('mcnemar', 2, 1, 1, 0.25, (3,))
    """
    from scipy.stats import binomtest

    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    difference = bootstrap_difference(first, second)
    gained = np.flatnonzero(second > first)
    lost = np.flatnonzero(second < first)
    values = np.concatenate([first, second])
    if np.isin(values[~np.isnan(values)], (0.0, 1.0)).all():
        changed = len(gained) + len(lost)
        test, p_value = "mcnemar", float(binomtest(len(gained), changed).pvalue) if changed else 1.0
    else:
        test, p_value = "randomisation", randomisation_test(first, second)
    ties = difference.n - len(gained) - len(lost)
    rows = tuple(gained.tolist()), tuple(lost.tolist())
    return PairedTest(difference, p_value, test, len(gained), ties, len(lost), *rows)
