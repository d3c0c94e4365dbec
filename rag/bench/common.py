"""Interleaved timing of contestants, and intervals of what was measured."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from rag.core.arrays import Float64
from rag.core.errors import ConfigError
from rag.core.log import Progress
from rag.metrics.significance import Interval, bootstrap_of

Values = Sequence[float]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Timings(Generic[Result]):
    """What a contestant returned in each round, and its seconds: elapsed, and processor time of all
    threads.
    """

    results: list[Result] = field(default_factory=list)
    elapsed_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)


def ratio(a: Values, b: Values, of: Callable[..., Float64] = np.median) -> Interval:
    """median(a) / median(b) with a bootstrap interval over rounds; entry i of both belongs to round
    i.

    Args:
        of: what is divided, in place of medians.

    Example:
        >>> figure = ratio([2.0, 2.1, 1.9], [1.0, 1.0, 1.0])
        >>> figure.value, figure.low, figure.high, figure.n
        (2.0, 1.9, 2.1, 3)
    """
    return bootstrap_of(lambda x, y, axis: of(x, axis) / of(y, axis), a, b)


def percentile_ms(seconds: Values, percent: float = 50) -> Interval:
    """A percentile, the median by default, in milliseconds with its bootstrap interval."""
    return bootstrap_of(lambda x, axis: 1000 * np.percentile(x, percent, axis), seconds)


def time_interleaved(
    contestants: Mapping[str, Callable[[], Result]],
    *,
    rounds: int,
    warm_up: int = 1,
) -> dict[str, Timings[Result]]:
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
    check_counts([rounds])
    for _ in range(warm_up):
        for run in contestants.values():
            run()
    names = list(contestants)
    timings: dict[str, Timings[Result]] = {name: Timings() for name in names}
    with Progress(rounds, "rounds", "measure") as progress:
        for _ in range(rounds):
            for name in names:
                _time(contestants[name], timings[name])
            names.reverse()
            progress.update()
    return timings


def _time(run: Callable[[], Result], timings: Timings[Result]) -> None:
    gc.collect()
    gc.disable()
    try:
        started_s = time.perf_counter()
        processor_s = time.process_time()
        timings.results.append(run())
        timings.processor_s.append(time.process_time() - processor_s)
        timings.elapsed_s.append(time.perf_counter() - started_s)
    finally:
        gc.enable()


def check_counts(counts: Sequence[int]) -> None:
    """Refuse what is no list of positive numbers: a list on the command line may hold anything."""
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise ConfigError(f"{', '.join(map(str, counts))}: expected positive numbers, as in 1,16")
