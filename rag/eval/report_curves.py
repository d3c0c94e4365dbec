"""The plots of the report: accuracy over k, reliability of the confidence, risk over coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rag.eval.markup import Html, el, join
from rag.eval.plots import Series, line_plot
from rag.eval.report_labels import percent, with_interval
from rag.eval.results import Evaluation

__all__ = ["curves_section"]

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def curves_section(evaluations: Sequence[Evaluation]) -> Html | None:
    """The plots that the evaluations have data for, and a sentence about each; None if there are none."""
    plots: list[Html] = []
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
        plots.append(
            line_plot(
                series,
                label="Share of questions with an answer in the first k passages",
                x_label="passages retrieved, k",
                y_label="An answer in the first k passages",
                x_ticks=ticks,
                log_x=True,
            )
        )
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
        plots.append(
            line_plot(
                series,
                label="Reliability of the confidence",
                x_label="confidence of the answer",
                y_label="Right, by confidence (dashed: ideal)",
                x_ticks=_SHARES,
                diagonal=True,
            )
        )
    risky = [(e.name, e.metrics["risk_coverage"]) for e in evaluations if e.metrics["risk_coverage"]]
    if risky:
        plots.append(
            line_plot(
                [Series(name, c["coverage"], c["risk"]) for name, c in risky],
                label="Risk over coverage",
                x_label="questions answered, the most confident first",
                y_label="Wrong among the answers given",
                x_ticks=_SHARES,
                points=False,
            )
        )
    if not plots:
        return None
    several = len(evaluations) > 1
    risks = dict(risky)
    notes = []
    for name, c in calibrated:
        note = (
            f"{f'{name}: c' if several else 'C'}alibration error {percent(c['ece'])}, mean confidence "
            f"{percent(c['mean_confidence'])}, right {percent(c['accuracy'])}, Brier score {c['brier']:.3f}."
        )
        if name in risks:
            note += (
                f" Area under risk–coverage {risks[name]['aurc']:.3f} "
                f"(best possible ordering {risks[name]['oracle_aurc']:.3f})."
            )
        notes.append(el("p", note, class_="soft"))
    return join([el("div", plots, class_="grid3"), notes])


def _merged(bins: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Neighbouring bins put together until each holds a fifteenth of all answers, and eight at least: a bin
    of two answers shows nothing but chance."""
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
