"""From per-question records to figures with intervals, curves and stages.

Only numbers are kept in memory, never texts, so 100,000 questions need some tens of megabytes.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rag.core.arrays import Float64
from rag.core.errors import DataError
from rag.eval.settings import EvaluationSettings
from rag.metrics.calibration import measure_calibration
from rag.metrics.significance import bootstrap

_LATENCY_PERCENTILES = (50, 90, 95, 99)


class FigureTable:
    """Figures of every question, column by column, filled record by record."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._columns: dict[str, array[float]] = {}  # each ends at the last question that has the figure

    def add(self, question_id: str, scores: Mapping[str, float | None]) -> None:
        """Append one question; figures it lacks are undefined."""
        for name, value in scores.items():
            column = self._columns.setdefault(name, array("d"))
            column.extend([np.nan] * (len(self.ids) - len(column)))
            column.append(np.nan if value is None else value)
        self.ids.append(question_id)

    @property
    def names(self) -> list[str]:
        """Figures that are defined for at least one question, in the order of their first appearance."""
        return [name for name, column in self._columns.items() if not np.isnan(column).all()]

    def column(self, name: str) -> Float64:
        """One figure of all questions, (n,); NaN where undefined."""
        values = np.full(len(self.ids), np.nan)
        column = self._columns.get(name, ())
        values[: len(column)] = column
        return values


def summarise(records: Iterable[Mapping[str, Any]], settings: EvaluationSettings) -> dict[str, Any]:
    """All figures of an evaluation, ready for `metrics.json`.

    Args:
        records: from `rag.eval.scoring.score_outcomes`, one per question.

    Returns:
        "n", "figures" {name: interval}, "curve" (accuracy over k), "calibration", "stages", "latency_ms",
        "reading".

    Raises:
        DataError: there are no records, or one lacks a field.
    """
    table = FigureTable()
    confidence, ranks = array("d"), array("d")
    stages: Counter[str] = Counter()
    latency: dict[str, array[float]] = {}
    reading: Counter[str] = Counter()
    deepest = 0
    for row, record in enumerate(records):
        try:
            table.add(record["id"], record["scores"])
            confidence.append(record.get("confidence", float("nan")))
            deepest = max(deepest, len(record["hits"]))
            findable = record["scores"].get("mrr") is not None
            ranks.append((record["first_rank"] or float("inf")) if findable else float("nan"))
            if record["stage"] is not None:
                stages[record["stage"]] += 1
            for stage, milliseconds in record["timings_ms"].items():
                latency.setdefault(stage, array("d")).append(milliseconds)
            reading.update(record.get("reading", {}))
        except (KeyError, TypeError) as error:
            raise DataError(f"record {row + 1}: field {error} is missing or malformed") from error
    n = len(table.ids)
    if n == 0:
        raise DataError("there are no questions to evaluate", hint="check the question file and --limit")
    intervals = {
        name: bootstrap(table.column(name), resamples=settings.resamples, seed=settings.seed)[0]
        for name in table.names
    }
    return {
        "n": n,
        "figures": {name: interval.to_json() for name, interval in intervals.items()},
        "curve": _accuracy_curve(np.array(ranks), deepest),
        "calibration": measure_calibration(np.array(confidence), table.column("em")),
        "stages": dict(stages.most_common()),
        "latency_ms": {stage: _percentiles(np.array(values)) for stage, values in latency.items()},
        "reading": {name: round(total / n, 2) for name, total in reading.items()},
    }


def _accuracy_curve(ranks: Float64, deepest: int) -> list[dict[str, Any]]:
    """Accuracy at up to 40 cut-offs between 1 and the deepest hit, evenly spaced on a logarithmic axis."""
    judged = ranks[~np.isnan(ranks)]
    if deepest == 0 or not len(judged):
        return []
    ks = np.unique(np.geomspace(1, deepest, 40).round().astype(int))
    return [{"k": int(k), "value": float((judged <= k).mean()), "n": len(judged)} for k in ks]


def _percentiles(values: Float64) -> dict[str, float]:
    figures = {f"p{p}": float(np.percentile(values, p)) for p in _LATENCY_PERCENTILES}
    return {"mean": float(values.mean()), **figures, "max": float(values.max())}
