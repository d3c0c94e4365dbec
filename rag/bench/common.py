"""Timing side by side, and the arguments every benchmark shares."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rag.core.errors import ConfigError, DataError
from rag.core.types import Question
from rag.metrics.significance import Interval

__all__ = [
    "Timings",
    "ratio",
    "sample_questions",
    "time_interleaved",
    "working_folder",
]

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of every contestant in every round; one round ran all of them one after another.

    Attributes:
        seconds: name → one number a round.
    """

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """Median seconds of a contestant."""
        return float(np.median(self.seconds[name]))

    def ratio(self, name: str, peer: str) -> Interval:
        """How many times as long `name` takes as `peer`, from the medians, with its interval over rounds."""
        return ratio(self.seconds[name], self.seconds[peer])

    def to_json(self) -> dict[str, Any]:
        """Medians and all rounds."""
        return {
            name: {"median_s": self.median(name), "rounds_s": list(rounds)}
            for name, rounds in self.seconds.items()
        }


def ratio(a: Sequence[float], b: Sequence[float], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """median(a) / median(b) with a bootstrap interval over rounds; entry i of both belongs to round i.

    Raises:
        DataError: a and b differ in length or are empty.

    Example:
        >>> figure = ratio([2.0, 2.1, 1.9], [1.0, 1.0, 1.0])
        >>> figure.value, figure.low, figure.high, figure.n
        (2.0, 1.9, 2.1, 3)
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise DataError(f"a ratio needs one time per round of both, found {first.shape} and {second.shape}")
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, len(first), size=(resamples, len(first)))
    ratios = np.median(first[drawn], axis=1) / np.median(second[drawn], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(np.median(first) / np.median(second)), float(low), float(high), len(first))


def time_interleaved(
    contestants: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Run all contestants in every round, in turn, so that a slow moment of the machine hits them alike.

    Every second round runs them in reverse order; Python's garbage collector rests while the clock runs.

    Args:
        contestants: name → what is timed.
        rounds: how often each runs; medians are taken over them.
        warm_up: untimed rounds before.
        clock: seconds; replaced in tests.

    Raises:
        ConfigError: fewer than one round.
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds, expected at least 1")
    for _ in range(warm_up):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants) if number % 2 == 0 else list(contestants)[::-1]
        for name in names:
            gc.collect()
            gc.disable()
            try:
                started = clock()
                contestants[name]()
                seconds[name].append(clock() - started)
            finally:
                gc.enable()
    return Timings({name: tuple(values) for name, values in seconds.items()})


def sample_questions(
    path: str | Path, *, limit: int | None = None, seed: int | None = None, format: str = "auto"
) -> list[Question]:
    """Questions of a file: all, the first `limit`, or with a seed a random sample of `limit` in file order.

    Raises:
        DataError: the file holds no questions.
        ConfigError: `limit` is below 1.
    """
    from rag.data.questions import read_questions

    if limit is not None and limit < 1:
        raise ConfigError(f"--limit is {limit}, expected at least 1")
    source = read_questions(path, format=format)
    questions = list(islice(source, limit) if seed is None else source)
    if not questions:
        raise DataError(f"{path}: no questions found")
    if seed is None or limit is None or limit >= len(questions):
        return questions
    chosen = np.random.default_rng(seed).choice(len(questions), size=limit, replace=False)
    return [questions[row] for row in sorted(chosen.tolist())]


@contextmanager
def working_folder(name: str, inside: str | Path | None = None) -> Iterator[Path]:
    """A new folder, removed afterwards, in `inside` (made if absent) or in the system's temporary place."""
    if inside is not None:
        Path(inside).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"rag-{name}-", dir=inside) as holder:
        yield Path(holder)
