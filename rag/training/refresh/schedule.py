"""When to refresh what an older version of the model made for training: an index, or mined negatives.

Source:
    Guu et al. 2020 (REALM): asynchronous refresh about every 500 steps; 30 times older cost 9.5 points.
    Xiong et al. 2021 (ANCE): refresh whenever a new checkpoint exists and the previous encoding has finished.
    Izacard et al. 2022 (Atlas): every 500 steps first, every 2,000 later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rag.core.errors import ConfigError

_GRAMMAR = 'use "never", "every 500", "0:500,2000:2000" (from step:every) or "drift>0.05"; commas mean or'


@dataclass(frozen=True, slots=True)
class RefreshSchedule:
    """Decides whether a refresh is due; made by `parse`.

    Attributes:
        intervals: pairs of first step and interval in steps, in order; the last one that has begun counts.
        drift_above: refresh when the measured drift is larger; None does not measure it.

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
            ConfigError: the string is not a schedule; the message states the format.
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
        """Whether no refresh is ever due."""
        return not self.intervals and self.drift_above is None

    @property
    def watches_drift(self) -> bool:
        """Whether drift has to be measured."""
        return self.drift_above is not None

    def is_due(self, step: int, last_step: int | None, drift: float | None = None) -> bool:
        """Whether to refresh before `step` is taken.

        Args:
            last_step: steps that had been taken when the last refresh read the model; None: there was none.
            drift: how far the model has moved since then, in the caller's measure; None if not measured.
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
