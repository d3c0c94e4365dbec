"""Logs of a training run: lines with losses and speed, and metrics.jsonl."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag.core.files import atomic_write_text
from rag.core.log import get_logger

log = get_logger("rag.training.fit")


def read_metrics(path: Path, until: int | None = None) -> list[dict[str, Any]]:
    """Records of a metrics.jsonl, at most those up to step `until`; a torn last line is passed over."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if until is None or record["step"] <= until:
            records.append(record)
    return records


class RunLog:
    """Counts steps and reports them.

    Args:
        step: steps taken before; later records of an interrupted run are cut off.
        state: the value of `state` at the checkpoint from which the run resumes, or an empty mapping.
        writes: False writes nothing (in all processes but one).
    """

    def __init__(
        self, out: Path, *, step: int, total_steps: int, state: Mapping[str, Any], every: int, writes: bool
    ) -> None:
        self._path, self._total, self._every, self._writes = out / "metrics.jsonl", total_steps, every, writes
        self._counters = {"examples": 0, "tokens": 0, "seconds": 0.0, **state.get("counters", {})}
        self._reported = dict(self._counters)
        self._sums: dict[str, tuple[float, int]] = dict(state.get("sums", {}))  # with the number of steps
        if writes:
            earlier = read_metrics(self._path, until=step)
            atomic_write_text(self._path, "".join(json.dumps(record) + "\n" for record in earlier))

    def count(
        self, loss: float, examples: int, tokens: int, seconds: float, parts: Mapping[str, float]
    ) -> None:
        """Count one step; the loss and each of `parts` are averaged over the steps that have them."""
        for name, value in {"loss": loss, **parts}.items():
            total, steps = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, steps + 1)
        for name, more in {"examples": examples, "tokens": tokens, "seconds": seconds}.items():
            self._counters[name] += more

    def report(self, step: int, rate: float, norm: float, fields: Mapping[str, Any]) -> None:
        """Log the last steps, if it is time to: every `every` steps and at the end."""
        if step % self._every and step != self._total:
            return
        means = {name: total / steps for name, (total, steps) in self._sums.items()}
        loss, fields = means.pop("loss"), {**means, **fields}
        self._write({"step": step, "loss": loss, "rate": rate, "norm": norm, **self._counters, **fields})
        examples, tokens, seconds = (now - self._reported[name] for name, now in self._counters.items())
        self._sums, self._reported, seconds = {}, dict(self._counters), max(seconds, 1e-9)
        if self._writes:
            log.info(
                "step %d/%d  loss %.4f  norm %.2f  lr %.2e  %.1f examples/s  %.0f tokens/s%s",
                *(step, self._total, loss, norm, rate, examples / seconds, tokens / seconds, _shown(fields)),
            )

    def scores(self, step: int, scores: Mapping[str, float], *, note: str = "") -> None:
        """Log the scores of a validation."""
        self._write({"step": step, **{f"eval/{name}": value for name, value in scores.items()}})
        if self._writes:
            log.info("step %d/%d%s%s", step, self._total, _shown(scores), note)

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, so that a resumed run reports the same losses as an undisturbed one."""
        return {"counters": self._counters, "sums": self._sums}

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._writes:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())


def _shown(fields: Mapping[str, Any]) -> str:
    return "".join(f"  {k} {f'{v:.4f}' if isinstance(v, float) else v}" for k, v in fields.items())
