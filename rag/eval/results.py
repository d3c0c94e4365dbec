"""Finished evaluations: their figures, in plain words, and their files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError
from rag.core.files import read_json
from rag.core.log import text_table
from rag.eval.figures import GROUP_FIGURES, find_figure, main_figures
from rag.eval.records import QuestionRecord, read_records
from rag.eval.runner import METRICS_NAME, RECORDS_NAME
from rag.metrics.significance import Interval

# Figures of a printed evaluation.
_MAX_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished evaluation on disk. Printed, it shows the main figures.

    Attributes:
        name: short name for tables.
        folder: its directory: records, predictions, `metrics.json`, `report.html`.
        metrics: content of `metrics.json`.
        notes: warnings about the figures.
        holder: object that keeps a temporary directory alive.
    """

    name: str
    folder: Path
    metrics: dict[str, Any]
    notes: tuple[str, ...] = ()
    holder: Any = field(default=None, repr=False, compare=False)

    @property
    def figures(self) -> dict[str, Interval]:
        """Every figure with its interval, by name."""
        return {
            name: Interval.from_json(values) for name, values in self.metrics["figures"].items()
        }

    def records(self) -> Iterator[QuestionRecord]:
        """One record per question: question, retrieved passages, answers and scores."""
        # The generator holds the evaluation, with which a temporary folder would be deleted.
        yield from read_records(self.folder / RECORDS_NAME)

    def __str__(self) -> str:
        figures = self.metrics["figures"]
        lines = [
            f"{find_figure(name).title:<32} {with_interval(figures[name])}"
            for name in main_figures(figures)[:_MAX_SHOWN]
        ]
        medians = {stage: times["p50"] for stage, times in self.metrics["latency_ms"].items()}
        if medians:
            total = medians.pop("total")
            stages = ", ".join(f"{stage} {median:.0f}" for stage, median in medians.items())
            lines.append(f"{'Median ms per question':<32} {total:.0f} ({stages})")
        for field_name, groups in self.metrics.get("groups", {}).items():
            names = [name for name in GROUP_FIGURES if name in groups[0]["figures"]]
            rows = []
            for group in groups:
                cells = [with_interval(group["figures"][name]) for name in names]
                rows.append([group["value"], str(group["n"]), *cells])
            titles = [find_figure(name).title for name in names]
            lines += text_table([field_name, "n", *titles], rows)
        return "\n".join([*lines, *self.notes])


def load_evaluation(folder: str | Path, name: str | None = None) -> Evaluation:
    """Open a result directory.

    Raises:
        DataError: it holds no finished evaluation.
    """
    path = Path(folder)
    hint = "check the path, and run `rag evaluate` to its end, with --run for a run"
    if not path.is_dir():
        raise DataError(f"{path}: no such folder", hint=hint)
    try:
        metrics = read_json(path / METRICS_NAME)
    except DataError as error:
        raise DataError(error.message, hint=hint) from error
    if not isinstance(metrics, dict) or metrics.get("kind") != "evaluation":
        raise DataError(f"{path / METRICS_NAME} was not written by an evaluation")
    return Evaluation(name or path.resolve().name, path, metrics, tuple(metrics.get("notes", ())))


def load_evaluations(folders: Sequence[str | Path]) -> list[Evaluation]:
    """Open several result directories; an evaluation is named by what its path has beyond the part
    that all paths share.

    Raises:
        ConfigError: a directory is given twice.
        DataError: one holds no finished evaluation.
    """
    paths = [Path(folder).resolve() for folder in folders]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{path} is given twice", hint="name each result folder once")
    shared = Path(os.path.commonpath(paths))
    if shared in paths:
        shared = shared.parent
    return [load_evaluation(path, path.relative_to(shared).as_posix()) for path in paths]


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent, "–" if undefined.

    Example:
        >>> percent(0.41234), percent(None)
        ('41.2 %', '–')
    """
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def with_interval(figure: Mapping[str, Any]) -> str:
    """A share with its interval, if it has one: "41.2 % (38.6–43.9)"."""
    if figure.get("low") is None:
        return percent(figure.get("value"))
    return f"{percent(figure['value'])} ({100 * figure['low']:.1f}–{100 * figure['high']:.1f})"
