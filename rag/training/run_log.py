"""The records of a run: losses and scores by step, on the screen and in metrics.jsonl."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag.core.files import atomic_write_text, records_of_journal
from rag.core.log import get_logger
from rag.training.config import TrainConfig

_COUNTERS = {"examples": 0, "tokens": 0, "seconds": 0.0}
# Reports of a run, unless its settings say how often.
_REPORTS = 10
_MOST_STEPS = 20

log = get_logger(__name__)


def read_metrics(path: Path) -> list[dict[str, object]]:
    """Records of a metrics.jsonl; a torn last line is cut off."""
    return list(records_of_journal(path, key="step"))


class RunLog:
    """Counts steps and reports them, on the screen and in metrics.jsonl.

    Args:
        state: that of the checkpoint from which the run resumes, with the number of its step; later
            records of an interrupted run are cut off.
        writes: False writes nothing (in all processes but one).
    """

    def __init__(
        self, config: TrainConfig, total_steps: int, state: Mapping[str, Any], *, writes: bool
    ) -> None:
        self._path = config.out / "metrics.jsonl"
        self._total = total_steps
        self._writes = writes
        share = min(_MOST_STEPS, max(1, total_steps // _REPORTS))
        self._every = config.log_every_steps or share
        self._counters: Mapping[str, float] = state.get("counters", _COUNTERS)
        # The counters at the last report.
        self._reported = self._counters
        # The total of each value, and the number of steps that have it.
        self._means: dict[str, tuple[float, int]] = dict(state.get("sums", {}))
        if writes:
            lines = ""
            for record in read_metrics(self._path):
                if record["step"] <= state["step"]:
                    lines += json.dumps(record) + "\n"
            atomic_write_text(self._path, lines)

    def record(
        self,
        step: int,
        sums: Mapping[str, float],
        means: Mapping[str, float],
        values: Mapping[str, float],
    ) -> None:
        """Count a step, and report the last ones if it is time to: every `every` steps and at the
        end.

        Args:
            sums: examples, tokens and seconds of the step, which are summed over the run.
            means: "loss" and its parts, which are averaged over the steps that have them.
            values: "rate", "norm" and others, which are reported as they are now.
        """
        for name, value in means.items():
            total, steps = self._means.get(name, (0.0, 0))
            self._means[name] = (total + value, steps + 1)
        self._counters = {name: total + sums[name] for name, total in self._counters.items()}
        if step % self._every and step != self._total:
            return
        figures = {name: total / steps for name, (total, steps) in self._means.items()}
        figures |= values
        self._write({"step": step, **figures, **self._counters})
        gained = {name: now - self._reported[name] for name, now in self._counters.items()}
        self._means = {}
        self._reported = self._counters
        if self._writes:
            seconds = max(gained.pop("seconds"), 1e-9)
            speeds = {f"{name}/s": count / seconds for name, count in gained.items()}
            log.info("step %d/%d%s", step, self._total, _shown({**figures, **speeds}))

    def scores(self, step: int, scores: Mapping[str, float], *, note: str = "") -> None:
        """Log the scores of a validation."""
        named = {f"eval/{name}": value for name, value in scores.items()}
        self._write({"step": step, **named})
        if self._writes:
            log.info("step %d/%d%s%s", step, self._total, _shown(scores), note)

    def state(self) -> dict[str, object]:
        """State for a checkpoint, so that a resumed run reports the same losses as an undisturbed
        one.
        """
        return {"counters": self._counters, "sums": self._means}

    def _write(self, record: Mapping[str, object]) -> None:
        if self._writes:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())


def _shown(fields: Mapping[str, float]) -> str:
    return "".join(f"  {name} {value:.5g}" for name, value in fields.items())
