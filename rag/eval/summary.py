"""The figures of an evaluation, from the records of its questions."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rag.core.arrays import Float64
from rag.eval.figures import GROUP_FIGURES
from rag.eval.records import QuestionRecord
from rag.eval.settings import EvaluationSettings
from rag.metrics.calibration import measure_calibration
from rag.metrics.significance import bootstrap

_MAX_GROUPS = 30
_LATENCY_PERCENTILES = (50, 90, 95, 99)
_CURVE_POINTS = 40


def figure_columns(scores: Sequence[Mapping[str, float | None]]) -> dict[str, Float64]:
    """Each figure of all questions, (n,), NaN where undefined; without those that no question
    has.
    """
    columns: dict[str, Float64] = {}
    for name in dict.fromkeys(name for row in scores for name in row):
        column = np.array([row.get(name) for row in scores], np.float64)
        if not np.isnan(column).all():
            columns[name] = column
    return columns


def summarise(records: Iterable[QuestionRecord], settings: EvaluationSettings) -> dict[str, Any]:
    """All figures of an evaluation, ready for `metrics.json`.

    Args:
        records: one per question; at least one.

    Returns:
        "n", "failed" (questions that could not be read), "figures" {name: interval}, "curve"
        (accuracy over k), "calibration", "stages", "groups" (of each field, by size: value, "n",
        "figures"), "latency_ms", "reading", "notes" (on groups that are left out).
    """
    scores: list[Mapping[str, float | None]] = []
    confidence: list[float | None] = []
    ranks: list[float] = []
    stages = Counter[str]()
    reading = Counter[str]()
    latency = defaultdict[str, list[float]](list)
    # The value of each field → numbers of its questions.
    groups = defaultdict[str, dict[str, list[int]]](dict)
    deepest = 0
    failed = 0
    for row, record in enumerate(records):
        scores.append(record.scores)
        confidence.append(record.confidence)
        deepest = max(deepest, len(record.hits))
        if record.scores.get("mrr") is not None:
            ranks.append(record.first_rank or np.inf)
        if record.stage is not None:
            stages[record.stage] += 1
        for stage, milliseconds in record.timings_ms.items():
            latency[stage].append(milliseconds)
        for name, value in record.groups.items():
            groups[name].setdefault(value, []).append(row)
        reading.update(record.reading)
        failed += bool(record.failure)
    n = len(scores)
    columns = figure_columns(scores)
    right = columns.get("em", np.full(n, np.nan))
    grouped = {name: _group_figures(rows, columns, settings) for name, rows in groups.items()}
    notes = []
    for name, rows in groups.items():
        if len(rows) > _MAX_GROUPS:
            n_left_out = n - sum(group["n"] for group in grouped[name])
            notes.append(
                f"{name} has {len(rows):,} values: the {_MAX_GROUPS} most frequent have figures, the "
                f"others, of {n_left_out:,} questions, have none"
            )
    return {
        "n": n,
        "failed": failed,
        "figures": _intervals(columns, settings),
        "curve": _accuracy_curve(np.array(ranks), deepest),
        "calibration": measure_calibration(np.array(confidence, np.float64), right),
        "stages": dict(stages.most_common()),
        "groups": grouped,
        "latency_ms": _latency(latency),
        "reading": {name: round(total / n, 2) for name, total in reading.items()},
        "notes": notes,
    }


def _group_figures(
    rows_by_value: Mapping[str, Sequence[int]],
    columns: Mapping[str, Float64],
    settings: EvaluationSettings,
) -> list[dict[str, Any]]:
    """The figures of the questions with each value of a field, the largest groups first."""
    by_size = sorted(rows_by_value.items(), key=lambda item: (-len(item[1]), item[0]))
    groups = []
    for value, rows in by_size[:_MAX_GROUPS]:
        figures = {name: columns[name][rows] for name in GROUP_FIGURES if name in columns}
        groups.append({"value": value, "n": len(rows), "figures": _intervals(figures, settings)})
    return groups


def _intervals(columns: Mapping[str, Float64], settings: EvaluationSettings) -> dict[str, Any]:
    return {
        name: bootstrap(column, seed=settings.seed).to_json() for name, column in columns.items()
    }


def _accuracy_curve(ranks: Float64, deepest: int) -> list[dict[str, float]]:
    """Accuracy at up to 40 cut-offs between 1 and the deepest hit, evenly spaced on a logarithmic
    axis.
    """
    if deepest == 0 or not len(ranks):
        return []
    ks = np.unique(np.geomspace(1, deepest, _CURVE_POINTS).round().astype(int))
    return [{"k": int(k), "value": float((ranks <= k).mean()), "n": len(ranks)} for k in ks]


def _latency(stages: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """The times of each stage; none of results that another program found."""
    if not stages.keys() - {"total"}:
        return {}
    latency = {}
    for stage, times in stages.items():
        figures = {"mean": float(np.mean(times))}
        for percent in _LATENCY_PERCENTILES:
            figures[f"p{percent}"] = float(np.percentile(times, percent))
        latency[stage] = {**figures, "max": max(times)}
    return latency
