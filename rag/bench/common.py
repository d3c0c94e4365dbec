"""Interleaved timing of contestants, and the inputs that several benchmarks share."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rag.core.arrays import Float64
from rag.core.errors import ConfigError, DataError
from rag.metrics.significance import Interval

Timings = Mapping[str, Sequence[float]]  # contestant → its seconds in each round


def ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """median(a) / median(b) with a bootstrap interval over rounds; entry i of both belongs to round
    i.

    Example:
        >>> figure = ratio([2.0, 2.1, 1.9], [1.0, 1.0, 1.0])
        >>> figure.value, figure.low, figure.high, figure.n
        (2.0, 1.9, 2.1, 3)
    """
    return interval_of(lambda x, y, axis: np.median(x, axis) / np.median(y, axis), a, b)


def ratio_of_means(a: Sequence[float], b: Sequence[float]) -> Interval:
    """mean(a) / mean(b) with a bootstrap interval; entry i of both belongs to question i."""
    return interval_of(lambda x, y, axis: x.mean(axis) / y.mean(axis), a, b)


def percentile(values: Sequence[float], percent: float) -> Interval:
    """A percentile with its bootstrap interval over the values."""
    return interval_of(lambda x, axis: np.percentile(x, percent, axis), values, resamples=1000)


def interval_of(
    statistic: Callable[..., Float64], *samples: Sequence[float], resamples: int = 2000
) -> Interval:
    """`statistic(*samples, axis=-1)` with its 95 % percentile bootstrap interval; entries stay
    together.
    """
    from scipy.stats import bootstrap

    value = float(statistic(*map(np.asarray, samples), axis=-1))
    n = len(samples[0])
    if n == 1:
        return Interval(value, value, value, n)
    resampled = bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        method="percentile",
        rng=0,
    )
    low, high = resampled.confidence_interval
    return Interval(value, float(low), float(high), n)


def time_interleaved(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 1,
) -> Timings:
    """Run all contestants in every round, in turn, so that a slow moment of the machine affects
    them equally.

    Every second round runs them in reverse order; Python's garbage collector is off while the clock
    runs.

    Args:
        contestants: name → the timed function.
        rounds: number of rounds; medians are taken over them.
        warm_up: untimed rounds before.

    Raises:
        ConfigError: fewer than one round.
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds, expected at least 1")
    for _ in range(warm_up):
        for run in contestants.values():
            run()
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            gc.collect()
            gc.disable()
            try:
                started = time.perf_counter()
                contestants[name]()
                seconds[name].append(time.perf_counter() - started)
            finally:
                gc.enable()
        names.reverse()
    return seconds


def check_counts(counts: Sequence[int]) -> None:
    """Refuse what is no list of positive numbers."""
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise ConfigError(f"{', '.join(map(str, counts))}: expected positive numbers, as in 1,16")


def question_texts(path: str | Path) -> list[str]:
    """Questions of a file.

    Raises:
        DataError: the file holds no questions.
    """
    from rag.data.questions import read_questions

    texts = [question.text for question in read_questions(path)]
    if not texts:
        raise DataError(f"{path}: no questions found")
    return texts
