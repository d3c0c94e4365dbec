"""Small plots as inline SVG: no library, no script; colours come from the page, so they follow light and
dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rag.eval.markup import Html, el, join

__all__ = ["Series", "interval_strip", "line_plot", "stacked_bar"]

_WIDTH, _HEIGHT = 360, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 42


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot.

    Attributes:
        name: for the legend.
        x: positions.
        y: values.
        low: lower ends of intervals, if there are any.
        high: upper ends.
        weight: relative sizes of the points; all alike if empty.
        notes: one tooltip a point.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    weight: Sequence[float] = ()
    notes: Sequence[str] = field(default=())


def line_plot(
    series: Sequence[Series],
    *,
    label: str,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    log_x: bool = False,
    diagonal: bool = False,
    points: bool = True,
) -> Html:
    """Lines over a common axis, with bands where intervals are known. Axis ends are the first and last tick.

    Args:
        series: lines; colours are taken in order.
        label: what a screen reader says.
        x_label: under the axis.
        y_label: above the axis.
        x_ticks: tick positions; shares (0 … 1) are printed as per cent.
        y_ticks: tick positions, shares.
        log_x: logarithmic x axis, printed as numbers.
        diagonal: dashed line from corner to corner.
        points: draw a dot at every value.
    """
    x_low, x_high = x_ticks[0], x_ticks[-1]
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def scale(value: float) -> float:
        return math.log(max(value, 1e-9)) if log_x else value

    def px(x: float) -> float:
        span = (scale(x_high) - scale(x_low)) or 1.0
        return round(_LEFT + (scale(x) - scale(x_low)) / span * (_WIDTH - _LEFT - _RIGHT), 1)

    def py(y: float) -> float:
        span = (y_high - y_low) or 1.0
        clipped = min(max(y, y_low), y_high)
        return round(_HEIGHT - _BOTTOM - (clipped - y_low) / span * (_HEIGHT - _TOP - _BOTTOM), 1)

    parts: list[Html] = []
    for tick in y_ticks:
        parts.append(el("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=py(tick), y2=py(tick), class_="grid"))
        parts.append(el("text", f"{100 * tick:g}%", x=_LEFT - 6, y=py(tick) + 4, text_anchor="end"))
    for tick in x_ticks:
        text = f"{tick:g}" if log_x else f"{100 * tick:g}%"
        parts.append(el("text", text, x=px(tick), y=_HEIGHT - _BOTTOM + 17, text_anchor="middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(el("text", x_label, x=middle, y=_HEIGHT - 6, text_anchor="middle", class_="axis"))
    if diagonal:
        parts.append(el("line", x1=px(x_low), y1=py(y_low), x2=px(x_high), y2=py(y_high), class_="ideal"))
    for number, line in enumerate(series):
        colour = f"s{number % 6}"
        if line.low:
            upper = [f"{px(x)},{py(y)}" for x, y in zip(line.x, line.high, strict=True)]
            lower = [f"{px(x)},{py(y)}" for x, y in zip(line.x, line.low, strict=True)]
            parts.append(el("polygon", points=" ".join(upper + lower[::-1]), class_=f"band {colour}"))
        path = " ".join(f"{px(x)},{py(y)}" for x, y in zip(line.x, line.y, strict=True))
        parts.append(el("polyline", points=path, class_=f"line {colour}"))
        if not points:
            continue
        heaviest = max(line.weight, default=1.0) or 1.0
        for index, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
            radius = 2.5 + 5.0 * math.sqrt(line.weight[index] / heaviest) if line.weight else 2.6
            title = el("title", line.notes[index]) if line.notes else None
            parts.append(el("circle", title, cx=px(x), cy=py(y), r=round(radius, 1), class_=f"dot {colour}"))
    drawing = el(
        "svg", join(parts), viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label, class_="plot"
    )
    legend = None
    if len(series) > 1:
        legend = el(
            "p",
            [
                el("span", el("i", "", class_=f"key s{number % 6}"), line.name)
                for number, line in enumerate(series)
            ],
            class_="legend",
        )
    return el("div", el("p", y_label, class_="y-label"), drawing, legend, class_="plot-box")


def interval_strip(value: float, low: float, high: float, number: int = 0) -> Html:
    """A value between 0 and 1 as a dot with its interval as a bar."""

    def x(share: float) -> float:
        return round(5 + 150 * min(max(share, 0.0), 1.0), 1)

    return el(
        "svg",
        el("line", x1=5, x2=155, y1=8, y2=8, class_="grid"),
        el(
            "rect",
            x=x(low),
            y=5,
            width=max(1.0, round(x(high) - x(low), 1)),
            height=6,
            rx=3,
            class_=f"range s{number % 6}",
        ),
        el("circle", cx=x(value), cy=8, r=4, class_=f"dot s{number % 6}"),
        viewBox="0 0 160 16",
        class_="strip",
        role="img",
        aria_label=f"{100 * value:.1f} %",
    )


def stacked_bar(parts: Sequence[tuple[str, float, str]]) -> Html:
    """Shares of a whole as one bar: (label, count, class) from left to right."""
    total = sum(count for _, count, _ in parts) or 1.0
    pieces = [
        el(
            "span",
            f"{100 * count / total:.0f}%" if count / total >= 0.06 else "",
            class_=f"piece {kind}",
            style=f"width:{100 * count / total:.3f}%",
            title=f"{name}: {count:,.0f}",
        )
        for name, count, kind in parts
        if count > 0
    ]
    return el("div", pieces, class_="stack")
