"""Logs of a training run: lines with speed and time left, and metrics.jsonl."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag.core.files import atomic_write_text
from rag.core.log import get_logger

log = get_logger("rag.training.fit")


def read_metrics(path: Path, until: int | None = None) -> list[dict[str, Any]]:
    """Records of a metrics.jsonl, at most those up to step `until`; a torn last line is passed over."""
    records: list[dict[str, Any]] = []
    if not path.exists():
        return records
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            if until is None or record["step"] <= until:
                records.append(record)
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return records


class RunLog:
    """Counts steps and reports them.

    Args:
        step: steps taken before; later records of an interrupted run are cut off.
        state: the value of `state` at the checkpoint from which the run resumes, or None.
        writes: False writes nothing (in all processes but one).

    Attributes:
        loss: mean loss of the last reported steps.
    """

    def __init__(
        self,
        out: Path,
        *,
        step: int,
        total_steps: int,
        state: Mapping[str, Any] | None,
        every: int,
        writes: bool,
    ) -> None:
        state = {} if state is None else state
        self._path, self._total, self._every, self._writes = out / "metrics.jsonl", total_steps, every, writes
        self._counters = {"examples": 0, "tokens": 0, "seconds": 0.0, **state.get("counters", {})}
        self._window: dict[str, Any] = {"loss": 0.0, "steps": 0, "parts": {}, **state.get("window", {})}
        loss = state.get("loss")
        self.loss = math.nan if loss is None else float(loss)
        self._before_s, self._started = float(self._counters["seconds"]), time.monotonic()
        self.restart_clock()
        if writes:
            earlier = read_metrics(self._path, until=step)
            atomic_write_text(self._path, "".join(json.dumps(record) + "\n" for record in earlier))

    def count(self, loss: float, examples: int, tokens: int, parts: Mapping[str, float]) -> None:
        """Count one step; `parts` are averaged over the steps that have them, the loss over all steps."""
        self._window["loss"] += loss
        self._window["steps"] += 1
        for name, value in parts.items():
            total, steps = self._window["parts"].get(name, (0.0, 0))
            self._window["parts"][name] = (total + value, steps + 1)
        for counter in (self._counters, self._pace):
            counter["examples"] += examples
            counter["tokens"] += tokens
        self._pace["steps"] += 1
        self._counters["seconds"] = self._before_s + time.monotonic() - self._started

    def report(self, step: int, rate: float, norm: float, fields: Mapping[str, Any]) -> None:
        """Log the last steps, if it is time to: every `every` steps and at the end."""
        if step % self._every and step != self._total:
            return
        self.loss = self._window["loss"] / self._window["steps"]
        fields = {**{name: total / steps for name, (total, steps) in self._window["parts"].items()}, **fields}
        self._window = {"loss": 0.0, "steps": 0, "parts": {}}
        self._write({"step": step, "loss": self.loss, "rate": rate, "norm": norm, **self._counters, **fields})
        pace, passed_s = self._pace, max(time.monotonic() - self._pace_started, 1e-9)
        left_s = passed_s / max(1, pace["steps"]) * (self._total - step)
        if self._writes:
            log.info(
                "step %d/%d  loss %.4f  norm %.2f  lr %.2e  %.1f examples/s  %.0f tokens/s  ETA %.1f min%s",
                *(step, self._total, self.loss, norm, rate),
                *(pace["examples"] / passed_s, pace["tokens"] / passed_s, left_s / 60),
                "".join(
                    f"  {name} {f'{value:.4f}' if isinstance(value, float) else value}"
                    for name, value in fields.items()
                ),
            )
        self.restart_clock()

    def scores(self, step: int, scores: Mapping[str, float], *, note: str = "") -> None:
        """Log the scores of a validation."""
        self._write({"step": step, **{f"eval/{name}": value for name, value in scores.items()}})
        if self._writes:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
            log.info("step %d/%d  %s%s", step, self._total, shown, note)

    def restart_clock(self) -> None:
        """Measure speed and time left from now on, so that validations and checkpoints do not count."""
        self._pace, self._pace_started = {"steps": 0, "examples": 0, "tokens": 0}, time.monotonic()

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, so that a resumed run reports the same losses as an undisturbed one."""
        loss = None if math.isnan(self.loss) else self.loss
        return {"counters": self._counters, "window": self._window, "loss": loss}

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._writes:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
