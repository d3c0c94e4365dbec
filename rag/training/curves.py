"""Training curves as one SVG file; light or dark with the reader's screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rag.core.svg import Axis, Frame, Series, draw

__all__ = ["draw_curves"]

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


def draw_curves(records: Sequence[Mapping[str, Any]]) -> str:
    """One panel for every quantity of a run's records, over the steps.

    Args:
        records: as in metrics.jsonl: "step", "loss", "rate", "norm", "eval/…", and whatever numbers else;
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
    """
    span = high - low or abs(high) or 1.0
    rough = span / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]
