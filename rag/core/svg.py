"""Line plots as SVG by hand: no library, no script; colours come from a style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot.

    Attributes:
        weight: relative sizes of the points; all equal if empty.
        notes: one tooltip per point.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    weight: Sequence[float] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """Range and labels of an axis.

    Attributes:
        ticks: positions, rising; the first and the last are its ends.
        is_log: whether it is logarithmic.
    """

    ticks: Sequence[float]
    labels: Sequence[str]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Relative position of a value: 0 at the first tick, 1 at the last."""
        low, high = self._scaled(self.ticks[0]), self._scaled(self.ticks[-1])
        return (self._scaled(value) - low) / ((high - low) or 1.0)

    def _scaled(self, value: float) -> float:
        return math.log(max(value, 1e-9)) if self.is_log else value


@dataclass(frozen=True, slots=True)
class Frame:
    """Size of a plot and its margins, in pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int

    def px(self, share: float) -> float:
        """Horizontal pixel of a relative position, from left to right."""
        return round(self.left + share * (self.width - self.left - self.right), 1)

    def py(self, share: float) -> float:
        """Vertical pixel of a relative position, from bottom to top; values outside are drawn on the edge."""
        inside = min(max(share, 0.0), 1.0)
        return round(self.height - self.bottom - inside * (self.height - self.top - self.bottom), 1)


def draw(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    frame: Frame,
    *,
    title: str = "",
    x_title: str = "",
    has_diagonal: bool = False,
    has_points: bool = True,
    radius: float = 2.6,
) -> str:
    """Draw the content of an `<svg>` or `<g>`: grid, labels, and a line with band and points per series.

    Classes: "grid", "axis", "title", "ideal", and "line", "band", "dot" with "s0" to "s5" by series.

    Example:
        >>> axis = Axis((0.0, 1.0), ("0", "1"))
        >>> picture = draw([Series("a", [0, 1], [0, 1])], axis, axis, Frame(100, 100, 10, 10, 10, 10))
        >>> '<polyline points="10.0,90.0 90.0,10.0" class="line s0"/>' in picture
        True
    """
    left, right = frame.left, frame.width - frame.right
    parts = [f'<text x="{left}" y="18" class="title">{escape(title)}</text>'] if title else []
    for tick, label in zip(y.ticks, y.labels, strict=True):
        at = frame.py(y.place(tick))
        parts.append(f'<line x1="{left}" x2="{right}" y1="{at}" y2="{at}" class="grid"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:g}" text-anchor="end">{escape(label)}</text>')
    for tick, label in zip(x.ticks, x.labels, strict=True):
        at, below = frame.px(x.place(tick)), frame.height - frame.bottom + 17
        parts.append(f'<text x="{at}" y="{below}" text-anchor="middle">{escape(label)}</text>')
    if x_title:
        middle = (left + right) / 2
        parts.append(
            f'<text x="{middle:g}" y="{frame.height - 6}" text-anchor="middle" class="axis">'
            f"{escape(x_title)}</text>"
        )
    if has_diagonal:
        parts.append(f'<line x1="{left}" x2="{right}" y1="{frame.py(0)}" y2="{frame.py(1)}" class="ideal"/>')
    for number, line in enumerate(series):
        colour = f"s{number % _COLOURS}"

        def corners(values: Sequence[float], line: Series = line) -> list[str]:
            return [
                f"{frame.px(x.place(at))},{frame.py(y.place(v))}"
                for at, v in zip(line.x, values, strict=True)
            ]

        if line.low:
            band = " ".join(corners(line.high) + corners(line.low)[::-1])
            parts.append(f'<polygon points="{band}" class="band {colour}"/>')
        points = corners(line.y)
        parts.append(f'<polyline points="{" ".join(points)}" class="line {colour}"/>')
        heaviest = max(line.weight, default=1.0) or 1.0
        for index, point in enumerate(points if has_points else ()):
            r = 2.5 + 5.0 * math.sqrt(line.weight[index] / heaviest) if line.weight else radius
            across, _, up = point.partition(",")
            circle = f'<circle cx="{across}" cy="{up}" r="{r:.1f}" class="dot {colour}"'
            note = f"><title>{escape(line.notes[index])}</title></circle>" if line.notes else "/>"
            parts.append(circle + note)
    return "".join(parts)
