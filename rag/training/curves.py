"""Training curves as one SVG file: no library; light or dark with the reader's screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["draw_curves"]

_COLUMNS = 3
_WIDTH, _HEIGHT = 300, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 30, 26
_FIRST = ("loss", "rate", "norm")
_TITLES = {"loss": "training loss", "rate": "learning rate", "norm": "gradient norm"}
_LEFT_OUT = frozenset({"step", "examples", "tokens", "seconds"})
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

    Returns:
        An SVG document.

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
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT
    panels = [
        f'<g transform="translate({number % _COLUMNS * _WIDTH},{number // _COLUMNS * _HEIGHT})">'
        f"{_panel(_TITLES.get(name, name.removeprefix('eval/')), points, last)}</g>"
        for number, (name, points) in enumerate(shown.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="training curves"><style>{_STYLE}</style>'
        f'<rect class="back" width="{width}" height="{height}"/>{"".join(panels)}</svg>\n'
    )


def _panel(title: str, points: Sequence[tuple[float, float]], last_step: float) -> str:
    low, high = min(y for _, y in points), max(y for _, y in points)
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def px(x: float) -> float:
        return round(_LEFT + x / last_step * (_WIDTH - _LEFT - _RIGHT), 1)

    def py(y: float) -> float:
        return round(_HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)

    parts = [f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>']
    for tick in ticks:
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{py(tick)}" y2="{py(tick)}"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{py(tick) + 4:g}" text-anchor="end">{tick:.4g}</text>')
    for step, anchor in ((0.0, "start"), (last_step, "end")):
        parts.append(f'<text x="{px(step)}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{step:,.0f}</text>')
    path = " ".join(f"{px(x)},{py(y)}" for x, y in points)
    parts.append(f'<polyline class="line" points="{path}"/>')
    if len(points) <= 40:
        for x, y in points:
            parts.append(
                f'<circle class="dot" cx="{px(x)}" cy="{py(y)}" r="2"><title>step {x:,.0f}: {y:.5g}'
                "</title></circle>"
            )
    return "".join(parts)


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
