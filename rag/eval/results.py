"""Finished evaluations: their figures, in plain words, and their files."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError
from rag.core.files import read_json
from rag.core.log import text_table
from rag.data.files.rows import json_records
from rag.eval.runner import METRICS_NAME, RECORDS_NAME
from rag.eval.scoring import GROUP_FIGURES
from rag.metrics.significance import Interval

_SHOWN = 16
_FIXED = {
    "em": ("Exact match", "first answer equals an accepted one after normalisation"),
    "f1": ("Token F1", "word overlap of the first answer with the best accepted one"),
    "shown_em": (
        "Exact match as shown",
        "what people see: nothing where “no answer” is shown, else a span, list or sentence",
    ),
    "shown_f1": ("Token F1 as shown", "the same, by word overlap"),
    "prec": ("Answer precision", "share of predicted words that are right"),
    "recall": ("Answer recall", "share of accepted words that are predicted"),
    "sp_em": ("Supporting facts EM", "the set of supporting sentences is exactly right"),
    "sp_f1": ("Supporting facts F1", "overlap of supporting sentences"),
    "joint_em": ("Joint EM", "answer and supporting facts both exactly right"),
    "joint_f1": ("Joint F1", "answer and supporting facts together"),
    "accuracy": ("Strict accuracy", "equal without normalisation"),
    "kilt_em": ("KILT EM", "exact match, counted only with perfect evidence"),
    "kilt_f1": ("KILT F1", "F1, counted only with perfect evidence"),
    "kilt_accuracy": ("KILT accuracy", "strict accuracy, counted only with perfect evidence"),
    "r_precision": ("R-precision", "gold pages among the first R pages"),
    "n_best_em": ("Any of the n best", "one of all answers returned is right"),
    "answered": ("Answered", "an answer is shown, as likely or perhaps right, and not “no answer”"),
    "gold_span_em": (
        "Ceiling of reading",
        "an accepted answer stands in the passages that were read",
    ),
    "mrr": ("Reciprocal rank of the answer", "1 / rank of the first passage that holds an answer"),
    "RR": ("Reciprocal rank of the gold", "1 / rank of the first gold passage"),
    "AP": ("Average precision", "over gold passages"),
}

_PATTERNS = (
    (r"top(\d+)", "Answer in top {}", "an accepted answer stands in one of the first {} passages"),
    (r"R@(\d+)", "Gold recall at {}", "share of gold passages among the first {}"),
    (
        r"recall@(\d+)",
        "Evidence recall at {}",
        "share of evidence sets complete among the first {} pages",
    ),
    (r"nDCG@(\d+)", "nDCG at {}", "graded ranking quality of the first {}"),
    (r"P@(\d+)", "Precision at {}", "share of gold among the first {}"),
    (
        r"passage_em@(\d+)",
        "All gold passages in top {}",
        "every passage that is needed was retrieved",
    ),
    (r"passage_any@(\d+)", "Any gold passage in top {}", "at least one of them was retrieved"),
    (
        r"path_em@(\d+)",
        "Right path in top {}",
        "one of the first {} paths is exactly the gold passages",
    ),
    (
        r"path_cover@(\d+)",
        "All gold passages in {} paths",
        "every passage that is needed is in one of them",
    ),
    (r"hop1_recall@(\d+)", "First gold passage in {} paths", "in the order of the question set"),
    (r"hop2_recall@(\d+)", "Second gold passage in {} paths", "in the order of the question set"),
    (r"passage_recall@(\d+)", "Share of gold passages in top {}", "of multi-hop questions"),
)
_MAIN = (  # most telling first
    *(
        "em",
        "f1",
        "sp_f1",
        "joint_f1",
        "kilt_em",
        "r_precision",
        "top1",
        "top5",
        "top20",
        "top100",
        "mrr",
    ),
    *("path_em@1", "path_cover@20", "passage_em@2", "passage_em@20", "passage_em@100"),
)
_BY_GOLD = ("nDCG@10", "RR", "R@5", "R@20", "R@100")  # where it is known which passages are right


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished evaluation on disk. Printed, it shows the main figures.

    Attributes:
        name: short name for tables.
        place: its directory: records, predictions, `metrics.json`, `report.html`.
        metrics: content of `metrics.json`.
        notes: warnings about the figures.
        holder: object that keeps a temporary directory alive.
    """

    name: str
    place: Path
    metrics: dict[str, Any]
    notes: tuple[str, ...] = ()
    holder: Any = field(default=None, repr=False, compare=False)

    @property
    def figures(self) -> dict[str, Interval]:
        """Every figure with its interval, by name."""
        return {
            name: Interval.from_json(values) for name, values in self.metrics["figures"].items()
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """One record per question: question, retrieved passages, answers and scores."""
        return json_records(self.place / RECORDS_NAME)

    def __str__(self) -> str:
        figures = self.metrics["figures"]
        lines = [
            f"{describe(name)[0]:<32} {with_interval(figures[name])}"
            for name in main_figures(figures, limit=_SHOWN)
        ]
        if medians := {stage: times["p50"] for stage, times in self.metrics["latency_ms"].items()}:
            total = medians.pop("total")
            stages = ", ".join(f"{stage} {median:.0f}" for stage, median in medians.items())
            lines.append(f"{'Median ms per question':<32} {total:.0f} ({stages})")
        for field_name, groups in self.metrics.get("groups", {}).items():
            names = [name for name in GROUP_FIGURES if name in groups[0]["figures"]]
            rows = [
                [
                    group["value"],
                    str(group["n"]),
                    *(with_interval(group["figures"][n]) for n in names),
                ]
                for group in groups
            ]
            lines += text_table([field_name, "n", *(describe(name)[0] for name in names)], rows)
        return "\n".join([*lines, *self.notes])


def load_evaluation(place: str | Path, name: str | None = None) -> Evaluation:
    """Open a result directory.

    Raises:
        DataError: it holds no finished evaluation.
    """
    path = Path(place)
    try:
        metrics = read_json(path / METRICS_NAME)
    except DataError as error:
        problem = error.message if path.is_dir() else f"{path}: no such folder"
        raise DataError(
            problem, hint="check the path, and run `rag evaluate` to its end"
        ) from error
    if not isinstance(metrics, dict) or metrics.get("kind") != "evaluation":
        raise DataError(f"{path / METRICS_NAME} was not written by an evaluation")
    return Evaluation(name or path.resolve().name, path, metrics)


def load_evaluations(places: Sequence[str | Path]) -> list[Evaluation]:
    """Open several result directories; they are named by what follows the part that all paths
    share.

    Raises:
        ConfigError: a directory is given twice.
        DataError: one holds no finished evaluation.
    """
    paths = [Path(place).resolve() for place in places]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ConfigError(f"{twice[0]} is given twice", hint="name each result folder once")
    shared = Path(os.path.commonpath(paths))
    shared = shared.parent if shared in paths else shared
    return [load_evaluation(path, path.relative_to(shared).as_posix()) for path in paths]


def describe(name: str) -> tuple[str, str]:
    """Title and explanation of a figure; an unknown name as it is."""
    if name in _FIXED:
        return _FIXED[name]
    for pattern, title, note in _PATTERNS:
        match = re.fullmatch(pattern, name)
        if match:
            if match[1] == "1":
                note = note.replace("one of the first {} passages", "the first passage")
            return title.format(match[1]), note.format(match[1])
    return name, ""


def main_figures(figures: Mapping[str, Any], limit: int = 5) -> list[str]:
    """The figures for the top of the page: those that exist, most telling first."""
    return [name for name in (*_MAIN, *_BY_GOLD) if name in figures][:limit]


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent, "–" if undefined.

    Example:
        >>> percent(0.41234), percent(None)
        ('41.2 %', '–')
    """
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def with_interval(figure: Mapping[str, Any]) -> str:
    """A share with its interval: "41.2 % (38.6–43.9)"."""
    if figure.get("value") is None:
        return "–"
    return f"{percent(figure['value'])} ({100 * figure['low']:.1f}–{100 * figure['high']:.1f})"
