"""The plots of the report: accuracy over k, reliability of the confidence, risk over coverage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag.core.svg import Axis, Frame, Series, draw
from rag.eval.report_labels import percent, with_interval
from rag.eval.results import Evaluation

_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SHARES = Axis(_TICKS, [f"{100 * tick:g}%" for tick in _TICKS])
_FRAME = Frame(360, 270, left=46, right=20, top=12, bottom=42)


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: description for screen readers, heading, drawing, and a legend if there are several
    lines."""

    label: str
    heading: str
    svg: str
    legend: tuple[str, ...]


def _plot(series: Sequence[Series], label: str, heading: str, x: Axis, x_title: str, **options: Any) -> Plot:
    svg = draw(series, x, _SHARES, _FRAME, x_title=x_title, **options)
    return Plot(label, heading, svg, tuple(line.name for line in series) if len(series) > 1 else ())


def curve_plots(evaluations: Sequence[Evaluation]) -> list[Plot]:
    """The plots that the evaluations have data for."""
    plots = []
    curves = [(e.name, e.metrics["curve"]) for e in evaluations if e.metrics["curve"]]
    if curves:
        deepest = max(points[-1]["k"] for _, points in curves)
        ticks = [k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if k < deepest / 1.25] + [deepest]
        series = [
            Series(
                name,
                x=[p["k"] for p in points],
                y=[p["value"] for p in points],
                low=[p["low"] for p in points],
                high=[p["high"] for p in points],
                notes=[f"{name}, k = {p['k']}: {with_interval(p)}" for p in points],
            )
            for name, points in curves
        ]
        label = "Share of questions with an answer in the first k passages"
        axis = Axis(ticks, [f"{tick:g}" for tick in ticks], is_log=True)
        heading = "An answer in the first k passages"
        plots.append(_plot(series, label, heading, axis, "passages retrieved, k"))
    calibrated = [(e.name, e.metrics["calibration"]) for e in evaluations if e.metrics["calibration"]]
    if calibrated:
        merged = [(name, _merged(c["bins"])) for name, c in calibrated]
        series = [
            Series(
                name,
                [b["confidence"] for b in bins],
                [b["accuracy"] for b in bins],
                weight=[b["n"] for b in bins],
                notes=[
                    f"{name}: {b['n']:,.0f} answers of confidence about {percent(b['confidence'])}, "
                    f"{percent(b['accuracy'])} right"
                    for b in bins
                ],
            )
            for name, bins in merged
        ]
        label, heading = "Reliability of the confidence", "Right, by confidence (dashed: ideal)"
        plots.append(_plot(series, label, heading, _SHARES, "confidence of the answer", has_diagonal=True))
    risky = [(e.name, e.metrics["risk_coverage"]) for e in evaluations if e.metrics["risk_coverage"]]
    if risky:
        series = [Series(name, c["coverage"], c["risk"]) for name, c in risky]
        x_title = "questions answered, the most confident first"
        heading = "Wrong among the answers given"
        plots.append(_plot(series, "Risk over coverage", heading, _SHARES, x_title, has_points=False))
    return plots


def curve_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """A sentence about the confidence of each system."""
    notes = []
    for evaluation in evaluations:
        c, risk = evaluation.metrics["calibration"], evaluation.metrics["risk_coverage"]
        if not c:
            continue
        begin = f"{evaluation.name}: c" if len(evaluations) > 1 else "C"
        note = (
            f"{begin}alibration error {percent(c['ece'])}, mean confidence {percent(c['mean_confidence'])}, "
            f"right {percent(c['accuracy'])}, Brier score {c['brier']:.3f}."
        )
        if risk:
            note += (
                f" Area under risk–coverage {risk['aurc']:.3f} "
                f"(best possible ordering {risk['oracle_aurc']:.3f})."
            )
        notes.append(note)
    return notes


def _merged(bins: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Merge neighbouring bins until each has a fifteenth of all answers, and at least eight: smaller bins
    show only chance.
    """
    least = max(8.0, sum(b["n"] for b in bins) / 15)
    merged: list[dict[str, float]] = []
    bins = [item for item in bins if item["n"]]
    for number, item in enumerate(bins):
        rest = sum(b["n"] for b in bins[number:])
        if not merged or (merged[-1]["n"] >= least and rest >= least):
            merged.append({"n": 0.0, "confidence": 0.0, "accuracy": 0.0})
        last, n = merged[-1], item["n"]
        for key in ("confidence", "accuracy"):
            last[key] = (last[key] * last["n"] + item[key] * n) / (last["n"] + n)
        last["n"] += n
    return merged
