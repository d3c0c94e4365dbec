"""From records of questions to figures with intervals, groups, curves and stages; texts are not kept."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rag.core.arrays import Float64
from rag.core.errors import DataError
from rag.eval.settings import EvaluationSettings
from rag.metrics.calibration import measure_calibration
from rag.metrics.significance import bootstrap

GROUP_FIGURES = ("em", "f1", "sp_f1", "joint_f1", "r_precision", "top1", "top5", "top20", "answered")
_MAX_GROUPS = 30
_LATENCY_PERCENTILES = (50, 90, 95, 99)


def figure_columns(scores: Sequence[Mapping[str, float | None]]) -> dict[str, Float64]:
    """Each figure of all questions, (n,), NaN where undefined; without those that no question has."""
    names = dict.fromkeys(name for row in scores for name in row)
    columns = {name: np.array([row.get(name) for row in scores], np.float64) for name in names}
    return {name: column for name, column in columns.items() if not np.isnan(column).all()}


def summarise(records: Iterable[Mapping[str, Any]], settings: EvaluationSettings) -> dict[str, Any]:
    """All figures of an evaluation, ready for `metrics.json`.

    Args:
        records: from `rag.eval.scoring.score_outcomes`, one per question.

    Returns:
        "n", "figures" {name: interval}, "curve" (accuracy over k), "calibration", "stages", "groups"
        (of each field, by size: value, "n", "figures"), "latency_ms", "reading".

    Raises:
        DataError: there are no records.
    """
    scores: list[Mapping[str, float | None]] = []
    confidence, ranks = list[float](), list[float]()
    stages, reading = Counter[str](), Counter[str]()
    latency: dict[str, list[float]] = {}
    groups: dict[str, dict[str, list[int]]] = {}  # field → value → rows of its questions
    deepest = 0
    for row, record in enumerate(records):
        scores.append(record["scores"])
        confidence.append(record.get("confidence", np.nan))
        deepest = max(deepest, len(record["hits"]))
        if record["scores"].get("mrr") is not None:
            ranks.append(record["first_rank"] or np.inf)
        if record["stage"] is not None:
            stages[record["stage"]] += 1
        for stage, milliseconds in record["timings_ms"].items():
            latency.setdefault(stage, []).append(milliseconds)
        for name, value in record.get("groups", {}).items():
            groups.setdefault(name, {}).setdefault(value, []).append(row)
        reading.update(record.get("reading", {}))
    if not (n := len(scores)):
        raise DataError("there are no questions to evaluate", hint="check the question file and --limit")
    columns = figure_columns(scores)
    grouped = {name: columns[name] for name in GROUP_FIGURES if name in columns}
    return {
        "n": n,
        "figures": _intervals(columns, settings),
        "curve": _accuracy_curve(np.array(ranks), deepest),
        "calibration": measure_calibration(np.array(confidence), columns.get("em", np.full(n, np.nan))),
        "stages": dict(stages.most_common()),
        "groups": {
            name: [
                {
                    "value": value,
                    "n": len(rows),
                    "figures": _intervals({k: column[rows] for k, column in grouped.items()}, settings),
                }
                for value, rows in sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))
            ][:_MAX_GROUPS]
            for name, values in groups.items()
        },
        "latency_ms": {stage: _percentiles(np.array(values)) for stage, values in latency.items()},
        "reading": {name: round(total / n, 2) for name, total in reading.items()},
    }


def _intervals(columns: Mapping[str, Float64], settings: EvaluationSettings) -> dict[str, Any]:
    return {name: bootstrap(column, seed=settings.seed)[0].to_json() for name, column in columns.items()}


def _accuracy_curve(ranks: Float64, deepest: int) -> list[dict[str, Any]]:
    """Accuracy at up to 40 cut-offs between 1 and the deepest hit, evenly spaced on a logarithmic axis."""
    if deepest == 0 or not len(ranks):
        return []
    ks = np.unique(np.geomspace(1, deepest, 40).round().astype(int))
    return [{"k": int(k), "value": float((ranks <= k).mean()), "n": len(ranks)} for k in ks]


def _percentiles(values: Float64) -> dict[str, float]:
    figures = {f"p{p}": float(np.percentile(values, p)) for p in _LATENCY_PERCENTILES}
    return {"mean": float(values.mean()), **figures, "max": float(values.max())}
