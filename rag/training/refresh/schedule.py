"""When to rebuild what training made stale, and how stale it is.

Any training that reads from something computed by an older version of its own model (an index, mined
negatives, cached scores) has the same two questions: is it time to compute it again, and what does its age
cost? The answers here know nothing about what is rebuilt.

Source:
    Guu et al. 2020 (REALM): asynchronous refresh about every 500 steps; 30 times older cost 9.5 points.
    Xiong et al. 2021 (ANCE): refresh whenever a new checkpoint exists and the previous encoding has finished.
    Izacard et al. 2022 (Atlas): every 500 steps first, every 2,000 later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rag.core.errors import ConfigError, DataError

FloatArray = NDArray[np.floating]
IntArray = NDArray[np.integer]
_QUESTIONS_PER_BLOCK = 1000
_LOW_OVERLAP, _LOW_COSINE, _LOW_ENTROPY, _LOW_DISTINCT = 0.3, 0.5, 0.02, 0.02  # worth a warning below
_GRAMMAR = 'use "never", "every 500", "0:500,2000:2000" (from step:every) or "drift>0.05"; commas mean or'


@dataclass(frozen=True, slots=True)
class RefreshSchedule:
    """Decides whether a refresh is due; made by `parse`.

    Attributes:
        intervals: (from step, every so many steps), in order of steps; the last one that has begun counts.
        drift_above: refresh when the measured drift is larger; None measures none.

    Example:
        >>> schedule = RefreshSchedule.parse("0:500,2000:2000")
        >>> [schedule.is_due(step, last) for step, last in ((0, None), (499, 0), (500, 0), (2400, 1500))]
        [True, False, True, False]
        >>> RefreshSchedule.parse("every 5000, drift>0.05").is_due(700, 600, drift=0.08)
        True
    """

    intervals: tuple[tuple[int, int], ...] = ()
    drift_above: float | None = None

    @classmethod
    def parse(cls, text: str) -> RefreshSchedule:
        """Read a schedule string.

        Raises:
            ConfigError: it is none; the message says what is.
        """
        if text.strip() == "never":
            return cls()
        intervals: list[tuple[int, int]] = []
        drift: float | None = None
        for term in (part.strip() for part in text.split(",")):
            if found := re.fullmatch(r"drift\s*>\s*(\d*\.?\d+(?:e-?\d+)?)", term):
                if drift is not None:
                    raise ConfigError(f"refresh schedule {text!r} names two drifts", hint=_GRAMMAR)
                drift = float(found[1])
            elif found := re.fullmatch(r"(?:(\d+)\s*:|every\s)\s*(\d+)", term):
                intervals.append((int(found[1] or 0), int(found[2])))
            else:
                raise ConfigError(f"refresh schedule {text!r}: {term!r} is not understood", hint=_GRAMMAR)
        starts = [start for start, _ in intervals]
        if any(every < 1 for _, every in intervals):
            raise ConfigError(f"refresh schedule {text!r}: an interval is at least 1 step", hint=_GRAMMAR)
        if starts != sorted(set(starts)):
            raise ConfigError(f"refresh schedule {text!r}: first steps must rise", hint=_GRAMMAR)
        return cls(tuple(intervals), drift)

    @property
    def is_never(self) -> bool:
        """Whether nothing is ever due."""
        return not self.intervals and self.drift_above is None

    @property
    def watches_drift(self) -> bool:
        """Whether drift has to be measured."""
        return self.drift_above is not None

    def is_due(self, step: int, last_step: int | None, drift: float | None = None) -> bool:
        """Whether to refresh before `step` is taken.

        Args:
            last_step: steps that had been taken when the last refresh read the model; None: there was none.
            drift: how far the model has moved since then, in the caller's measure; None: not measured.
        """
        if self.is_never:
            return False
        every = next((every for start, every in reversed(self.intervals) if start <= step), None)
        if last_step is None:
            return every is not None or self.watches_drift
        if every is not None and step - last_step >= every:
            return True
        return self.drift_above is not None and drift is not None and drift > self.drift_above

    def __str__(self) -> str:
        """The schedule as `parse` reads it."""
        terms = [f"{start}:{every}" for start, every in self.intervals]
        terms += [f"drift>{self.drift_above}"] if self.drift_above is not None else []
        return ",".join(terms) or "never"


def top_k_overlap(stale: IntArray, fresh: IntArray) -> float:
    """Mean share of the fresh top-k that the stale top-k holds too; 1 means nothing changed.

    Args:
        stale: rows (n, K) found by the older version; -1 where nothing was found.

    Example:
        >>> top_k_overlap(np.array([[1, 2, 3, 4]]), np.array([[4, 3, 9, 8]]))
        0.5
    """
    if len(stale) != len(fresh):
        raise DataError(f"{len(stale)} stale result lists for {len(fresh)} fresh ones, expected as many")
    shares = []
    for old, new in zip(stale, fresh, strict=True):
        found = new[new >= 0]
        if len(found):
            shares.append(float(np.isin(found, old[old >= 0]).mean()))
    return float(np.mean(shares)) if shares else 1.0


def mean_cosine(old: FloatArray, new: FloatArray) -> float:
    """Mean cosine of vectors (n, D) before and after, row by row.

    Example:
        >>> mean_cosine(np.float32([[1, 0], [0, 2]]), np.float32([[3, 0], [1, 0]]))
        0.5
    """
    if old.shape != new.shape:
        raise DataError(f"vectors of shapes {old.shape} and {new.shape}, expected equal shapes")
    a, b = old.astype(np.float64), new.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean(np.sum(a * b, axis=1) / np.maximum(lengths, 1e-30)))


def score_entropy(scores: FloatArray, temperature: float = 1.0) -> float:
    """Mean entropy of p(z|q) = softmax(scores / temperature) as a share of the largest possible, 0 to 1.

    1 means all retrieved documents are equally likely, 0 that one has all the weight.

    Args:
        scores: (n, K); -inf where nothing was found.

    Example:
        >>> round(score_entropy(np.zeros((2, 4))), 3), round(score_entropy(np.array([[100.0, 0.0]])), 3)
        (1.0, 0.0)
    """
    from scipy.special import entr, softmax

    counts = np.isfinite(scores).sum(axis=1)
    values = np.where(np.isfinite(scores), scores, -np.inf)[counts > 1].astype(np.float64)  # (m, K)
    if not len(values):
        return 1.0
    entropies = entr(softmax(values / temperature, axis=1)).sum(axis=1)
    return float(np.mean(entropies / np.log(counts[counts > 1])))


def distinct_share(rows: IntArray, documents: int) -> float:
    """Distinct documents among those retrieved per 1,000 questions, as a share of what is possible.

    Near 0 the retriever has collapsed: every question gets the same documents.

    Args:
        rows: (n, K); -1 where nothing was found.

    Example:
        >>> distinct_share(np.array([[0, 1], [0, 1]]), documents=100)
        0.5
    """
    shares = []
    for start in range(0, len(rows), _QUESTIONS_PER_BLOCK):
        block = rows[start : start + _QUESTIONS_PER_BLOCK]
        found = block[block >= 0]
        if found.size:
            shares.append(len(np.unique(found)) / min(found.size, documents))
    return float(np.mean(shares)) if shares else 0.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """What a refresh found out about the version before it, on a probe set; what nobody measured is well.

    Attributes:
        age_steps: steps between the two versions.
    """

    age_steps: int = 0
    overlap: float = 1.0
    cosine: float = 1.0
    entropy: float = 1.0
    distinct: float = 1.0

    def record(self) -> Mapping[str, float]:
        """For metrics files."""
        return {f"refresh/{name}": value for name, value in asdict(self).items()}

    def alarms(self) -> list[str]:
        """Sentences about what has gone wrong; empty if nothing has.

        Example:
            >>> Staleness(500, overlap=0.9, cosine=0.99, entropy=0.4, distinct=0.001).alarms()
            ['collapse: only 0.1% of the retrieved documents are distinct; lower the learning rate']
        """
        rules = (
            (
                self.overlap < _LOW_OVERLAP,
                f"stale: only {self.overlap:.0%} of the top documents were known after {self.age_steps:,} "
                "steps; refresh more often",
            ),
            (
                self.cosine < _LOW_COSINE,
                f"drift: old and new document vectors have a mean cosine of {self.cosine:.2f}; refresh more "
                "often or lower the learning rate",
            ),
            (
                self.entropy < _LOW_ENTROPY,
                f"peaked: p(z|q) has {self.entropy:.1%} of its largest entropy, one document takes all; "
                "raise the temperature",
            ),
            (
                self.distinct < _LOW_DISTINCT,
                f"collapse: only {self.distinct:.1%} of the retrieved documents are distinct; lower the "
                "learning rate",
            ),
        )
        return [sentence for applies, sentence in rules if applies]
