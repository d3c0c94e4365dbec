"""How the figures of an index grow with its passages: laws fitted to measured sizes, and extrapolated."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np

from rag.bench.report import Report, Table, format_bytes
from rag.core.errors import ConfigError, DataError
from rag.core.progress import format_duration
from rag.metrics.significance import Interval

Points = list[tuple[float, float]]
"""Passages and a figure, by passages."""


def run_growth_benchmark(figures: list[Path], passages: int = 21_015_324) -> Report:
    """Extrapolate the figures of `rag bench build` to a larger size.

    Two laws are fitted to each figure, both with equal weight for equal relative errors: a line and a power
    law. Lines through every two sizes show how much depends on one of them. The report states the law that
    fits better and, in brackets, the lowest and highest of all: a range of extrapolations, not a confidence
    interval.

    Args:
        figures: Reports of `rag bench build --json`, three or more sizes; may be given several times.
        passages: Size to extrapolate to.

    Raises:
        ConfigError: fewer than three sizes.
        DataError: a file is no such report.
    """
    measured: dict[str, Points] = {}
    settings, sizes = [], []
    for path in figures:
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            found, growth = read["figures"]["passages"], read["figures"]["growth"]
            settings.append({name: read["settings"][name] for name in ("encoder", "index_type", "retriever")})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is no report of `rag bench build` ({error!r})", hint="write one with --json"
            ) from error
        sizes.append(found)
        for name, value in growth.items():
            measured.setdefault(name, []).append((float(found), float(value)))
    if len(set(sizes)) < 3:
        raise ConfigError(f"{len(set(sizes))} sizes, expected three or more", hint="measure further sizes")
    if any(each != settings[0] for each in settings):
        raise ConfigError("the reports are of indexes of different kinds", hint="give reports of one kind")
    report = Report("growth", {**settings[0], "sizes": sorted(sizes), "passages": passages})
    rows = []
    for name, points in measured.items():
        points.sort()
        if len(points) < len(figures):  # a stage too short to be seen at each size
            continue
        law = extrapolated(points, passages)
        report.figures[name] = {"measured": points, "extrapolated": law, "exponent": exponent(points)}
        cells = [_shown(name, value) for _, value in points]
        ends = f"{_shown(name, law.value)} [{_shown(name, law.low)}, {_shown(name, law.high)}]"
        rows.append((name, *cells, f"{exponent(points):.2f}", ends))
    columns = ("", *(f"{size:,}" for size in sorted(sizes)), "exponent", f"{passages:,} (extrapolated)")
    report.tables.append(Table("growth", columns, rows))
    return report


def extrapolated(points: Points, at: float) -> Interval:
    """The line or the power law at a size, whichever fits better, with the lowest and highest of both and of
    the lines through every two points.

    Example:
        >>> line = extrapolated([(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)], 10.0)
        >>> round(line.value, 6), round(line.low, 2), round(line.high, 2)
        (21.0, 18.37, 21.0)
        >>> round(extrapolated([(1.0, 3.0), (2.0, 12.0), (4.0, 48.0)], 10.0).value, 6)
        300.0
    """
    sizes, values = np.array(points).T
    asked = np.append(sizes, at)
    laws = [np.polyval(np.polyfit(sizes, values, 1, w=1.0 / np.maximum(np.abs(values), 1e-12)), asked)]
    if (values > 0).all():
        laws.append(np.exp(np.polyval(np.polyfit(np.log(sizes), np.log(values), 1), np.log(asked))))
    best = min(laws, key=lambda law: float(np.square(law[:-1] / np.maximum(values, 1e-12) - 1.0).sum()))
    ends = [float(law[-1]) for law in laws]
    for (a, low), (b, high) in combinations(points, 2):
        if a != b:
            ends.append(low + (high - low) * (at - a) / (b - a))
    return Interval(float(best[-1]), max(min(ends), 0.0), max(ends), len(points))  # nothing here is below 0


def exponent(points: Points) -> float:
    """Slope of log figure over log size: 1 where it grows in proportion to the corpus, 0 where not at all.

    Example:
        >>> round(exponent([(1.0, 3.0), (2.0, 6.0), (4.0, 12.0)]), 6)
        1.0
    """
    sizes, values = np.array(points).T
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-12)), 1)[0])


def _shown(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return format_bytes(value)
    if name.endswith("ms"):
        return f"{value:.0f} ms"
    return (
        f"{1000 * value:.0f} ms"
        if abs(value) < 1
        else f"{value:.1f} s"
        if value < 600
        else format_duration(value)
    )
