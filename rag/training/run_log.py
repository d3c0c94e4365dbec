"""Logs of a training run: lines with speed and time left, metrics.jsonl, curves.svg, TensorBoard."""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag.core.files import atomic_write_text
from rag.core.log import get_logger
from rag.core.optional import require
from rag.core.progress import format_duration
from rag.core.svg import Axis, Frame, Series, draw

_COLUMNS = 3
_FRAME = Frame(300, 190, left=52, right=18, top=30, bottom=26)
_FIRST = ("loss", "rate", "norm")
_TITLES = {"loss": "training loss", "rate": "learning rate", "norm": "gradient norm"}
_LEFT_OUT = frozenset({"step", "examples", "tokens", "seconds"})
_MOST_POINTS = 40
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#444}.title{font-weight:600;fill:#111}"
    ".grid{stroke:#ddd}.line{fill:none;stroke:#1764ab;stroke-width:1.5}.dot{fill:#1764ab}"
    ".back{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}.grid{stroke:#444}"
    ".line{stroke:#7cb7f0}.dot{fill:#7cb7f0}.back{fill:#161616}}"
)

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
        tensorboard: bool,
        writes: bool,
    ) -> None:
        state = {} if state is None else state
        self._out, self._total, self._every, self._writes = out, total_steps, every, writes
        self._counters = {"examples": 0, "tokens": 0, "seconds": 0.0, **state.get("counters", {})}
        self._window: dict[str, Any] = {"loss": 0.0, "steps": 0, "parts": {}, **state.get("window", {})}
        loss = state.get("loss")
        self.loss = math.nan if loss is None else float(loss)
        self._before_s = float(self._counters["seconds"])
        self._started = time.monotonic()
        self._pace = {"steps": 0, "examples": 0, "tokens": 0}
        self._paced = self._started
        self._events: Any = None
        if not writes:
            return
        if tensorboard:
            require("tensorboard", extra="tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)
        kept = read_metrics(self.path, until=step)
        atomic_write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    @property
    def path(self) -> Path:
        """The file metrics.jsonl: one JSON object per line."""
        return self._out / "metrics.jsonl"

    def close(self) -> None:
        """Draw the curves one last time."""
        self.draw()
        if self._events is not None:
            self._events.close()

    def count(
        self, loss: float, examples: int, tokens: int, parts: Mapping[str, float] | None = None
    ) -> None:
        """Count one step; `parts` are averaged over the steps that have them, the loss over all steps."""
        self._window["loss"] += loss
        self._window["steps"] += 1
        for name, value in (parts or {}).items():
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
        pace, passed_s = self._pace, max(time.monotonic() - self._paced, 1e-9)
        left_s = passed_s / max(1, pace["steps"]) * (self._total - step)
        if self._writes:
            log.info(
                "step %d/%d  loss %.4f  norm %.2f  lr %.2e  %.1f examples/s  %.0f tokens/s  ETA %s%s",
                *(step, self._total, self.loss, norm, rate),
                *(pace["examples"] / passed_s, pace["tokens"] / passed_s, format_duration(left_s)),
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
        self.draw()

    def restart_clock(self) -> None:
        """Measure speed and time left from now on, so that validations and checkpoints do not count."""
        self._pace = {"steps": 0, "examples": 0, "tokens": 0}
        self._paced = time.monotonic()

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, so that a resumed run reports the same losses as an undisturbed one."""
        loss = None if math.isnan(self.loss) else self.loss
        return {"counters": self._counters, "window": self._window, "loss": loss}

    def draw(self) -> None:
        """Draw curves.svg from all records so far."""
        if self._writes:
            atomic_write_text(self._out / "curves.svg", draw_curves(read_metrics(self.path)))

    def _write(self, record: Mapping[str, Any]) -> None:
        if not self._writes:
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._events is not None:
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float):
                    place = name if "/" in name else f"train/{name}"
                    self._events.add_scalar(place, value, record["step"])


def draw_curves(records: Sequence[Mapping[str, Any]]) -> str:
    """One panel for every quantity of a run's records, over the steps.

    Args:
        records: as in metrics.jsonl: "step", "loss", "rate", "norm", "eval/…", and any other numbers;
            counters are left out.

    Example:
        >>> picture = draw_curves([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "eval/mrr": 0.5}])
        >>> picture.count("<polyline"), "training loss" in picture, "mrr" in picture
        (2, True, True)
    """
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in _FIRST}
    for record in records:
        for name, value in record.items():
            plain = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in _LEFT_OUT and plain and math.isfinite(value):
                curves.setdefault(name, []).append((float(record["step"]), float(value)))
    shown = {name: points for name, points in curves.items() if points}
    last = max((points[-1][0] for points in shown.values()), default=1.0)
    rows = max(1, -(-len(shown) // _COLUMNS))
    width, height = _COLUMNS * _FRAME.width, rows * _FRAME.height
    panels = [
        f'<g transform="translate({number % _COLUMNS * _FRAME.width},{number // _COLUMNS * _FRAME.height})">'
        f"{_panel(_TITLES.get(name, name.removeprefix('eval/')), points, last)}</g>"
        for number, (name, points) in enumerate(shown.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="training curves"><style>{_STYLE}</style>'
        f'<rect class="back" width="{width}" height="{height}"/>{"".join(panels)}</svg>\n'
    )


def _panel(title: str, points: Sequence[tuple[float, float]], last_step: float) -> str:
    steps, values = zip(*points, strict=True)
    ticks = _ticks(min(values), max(values))
    series = Series(title, steps, values, notes=[f"step {x:,.0f}: {y:.5g}" for x, y in points])
    return draw(
        [series],
        Axis((0.0, last_step), ("0", f"{last_step:,.0f}")),
        Axis(ticks, [f"{tick:.4g}" for tick in ticks]),
        _FRAME,
        title=title,
        has_points=len(points) <= _MOST_POINTS,
        radius=2.0,
    )


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers around an interval.

    Example:
        >>> _ticks(0.12, 0.48)
        [0.1, 0.2, 0.3, 0.4, 0.5]
        >>> _ticks(1e-12, 1e-12)
        [1e-12, 1.25e-12]
        >>> _ticks(1.0, 1.0)
        [0.75, 1.0]
    """
    span = high - low or abs(high) or 1.0
    rough = span / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last and high in (1.0, 100.0):  # a share that stays at its highest
        first -= 1
    return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]
