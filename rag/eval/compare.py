"""Compare evaluations of the same questions: differences with intervals, p-values corrected by Holm, flips;
whether one system is not worse than another by more than a margin, pooled over question sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.eval.aggregate import FigureTable
from rag.eval.report_labels import compared_figures
from rag.eval.results import Evaluation
from rag.metrics.significance import PairedTest, compare_paired, holm, non_inferiority

__all__ = ["Comparison", "compare_evaluations", "compare_pooled"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of two systems.

    Attributes:
        figure: its name.
        a: name of the first system.
        b: name of the second system.
        value_a: mean of the first over the questions where both have the figure.
        value_b: mean of the second.
        result: the paired test; `result.difference` is b - a.
        p_holm: p-value corrected for all comparisons made together.
        gained: ids of questions where b is better.
        lost: ids of questions where a is better.
        p_worse: one-sided, against "b is worse by the margin or more"; None without a margin.
    """

    figure: str
    a: str
    b: str
    value_a: float
    value_b: float
    result: PairedTest
    p_holm: float
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    p_worse: float | None = None


def compare_evaluations(
    evaluations: Sequence[Evaluation],
    figures: Sequence[str] | None = None,
    *,
    all_pairs: bool = False,
) -> list[Comparison]:
    """Compare every system with the first, or all pairs.

    Args:
        evaluations: two or more, over the same questions in any order, with different names.
        figures: figures to compare; the main ones by default.
        all_pairs: compare every pair instead of each with the first.

    Returns:
        One comparison a figure and pair; `p_holm` is corrected over all of them.

    Raises:
        ConfigError: fewer than two evaluations, names that are not distinct, or a figure one of them lacks.
        MismatchedArtifactError: question sets or answer profiles differ.
    """
    names = [evaluation.name for evaluation in evaluations]
    if len(evaluations) < 2 or len(set(names)) != len(names):
        raise ConfigError(
            f"expected two or more evaluations with distinct names, found {len(names)}: {', '.join(names)}"
        )
    chosen = _chosen(evaluations, figures)
    _check_same(evaluations)
    tables = [_aligned(evaluation, evaluations[0]) for evaluation in evaluations]
    ids = tables[0][1]
    pairs = [
        (i, j) for i in range(len(evaluations)) for j in range(i + 1, len(evaluations)) if all_pairs or i == 0
    ]
    rows = []
    for i, j in pairs:
        for name in chosen:
            a, b = tables[i][0][name], tables[j][0][name]
            both = ~np.isnan(a) & ~np.isnan(b)
            result = compare_paired(a, b)
            rows.append((name, i, j, float(a[both].mean()), float(b[both].mean()), result))
    corrected = holm([result.p_value for *_, result in rows])
    return [
        Comparison(
            *(name, names[i], names[j], value_a, value_b, result, p_holm),
            gained=tuple(ids[row] for row in result.gained),
            lost=tuple(ids[row] for row in result.lost),
        )
        for (name, i, j, value_a, value_b, result), p_holm in zip(rows, corrected, strict=True)
    ]


def compare_pooled(
    evaluations: Sequence[Evaluation], margin: float, figures: Sequence[str] | None = None
) -> list[Comparison]:
    """Is the second of each pair no worse than the first, by less than a margin, over all pairs' questions?

    Args:
        evaluations: first and second system, over the same questions; first and second over others; …
        margin: the smallest loss that matters, in the units of the figures (0.01: one point of EM).
        figures: figures to compare; the main ones by default.

    Returns:
        One comparison a figure, every question counting alike, with `p_worse`.

    Raises:
        ConfigError: not two, four, … evaluations, no margin above 0, or a figure one of them lacks.
        MismatchedArtifactError: question sets or answer profiles of a pair differ.
    """
    if len(evaluations) < 2 or len(evaluations) % 2:
        raise ConfigError(
            "a margin takes pairs of evaluations, the first system and the second over one question set, "
            f"then both over the next; found {len(evaluations)}"
        )
    chosen = _chosen(evaluations, figures)
    pairs = list(zip(evaluations[::2], evaluations[1::2], strict=True))
    ids: list[str] = []
    values: dict[str, list[tuple[Any, Any]]] = {name: [] for name in chosen}
    for first, second in pairs:
        _check_same((first, second))
        (ours, asked), (theirs, _) = _aligned(first, first), _aligned(second, first)
        ids += asked
        for name in chosen:
            values[name].append((ours[name], theirs[name]))
    rows = []
    for name in chosen:
        a, b = (np.concatenate(parts) for parts in zip(*values[name], strict=True))
        both = ~np.isnan(a) & ~np.isnan(b)
        rows.append(
            (name, a[both].mean(), b[both].mean(), compare_paired(a, b), non_inferiority(a, b, margin))
        )
    first_names, second_names = (", ".join(one.name for one in side) for side in zip(*pairs, strict=True))
    corrected = holm([result.p_value for *_, result, _ in rows])
    return [
        Comparison(
            *(name, first_names, second_names, float(value_a), float(value_b), result, p_holm),
            gained=tuple(ids[row] for row in result.gained),
            lost=tuple(ids[row] for row in result.lost),
            p_worse=p_worse,
        )
        for (name, value_a, value_b, result, p_worse), p_holm in zip(rows, corrected, strict=True)
    ]


def _chosen(evaluations: Sequence[Evaluation], figures: Sequence[str] | None) -> list[str]:
    chosen = list(figures) if figures else compared_figures(*(e.metrics["figures"] for e in evaluations))
    for evaluation in evaluations:
        missing = [name for name in chosen if name not in evaluation.metrics["figures"]]
        if missing:
            raise ConfigError(
                f"{evaluation.name} has no figure {missing[0]!r}",
                hint=f"it has {', '.join(evaluation.metrics['figures'])}",
            )
    if not chosen:
        raise ConfigError("these evaluations share no figure", hint="name figures to compare")
    return chosen


def _check_same(evaluations: Sequence[Evaluation]) -> None:
    first = evaluations[0]
    for other in evaluations[1:]:
        for key, label in (("profile", "answer profile"), ("n", "number of questions")):
            if first.metrics[key] != other.metrics[key]:
                raise MismatchedArtifactError(
                    f"{first.name} and {other.name} differ in {label}: "
                    f"{first.metrics[key]!r} and {other.metrics[key]!r}",
                    hint="evaluate both on the same questions with the same profile",
                )


def _aligned(evaluation: Evaluation, first: Evaluation) -> tuple[dict[str, Any], list[str]]:
    """Figures of an evaluation in the order of the questions of the first."""
    expected = {r["id"]: hash((r["question"], tuple(r["answers"]))) for r in first.records()}
    table = FigureTable()
    texts: dict[str, int] = {}
    for record in evaluation.records():
        table.add(record["id"], record["scores"])
        texts[record["id"]] = hash((record["question"], tuple(record["answers"])))
    if texts != expected:
        odd = sorted(set(texts) ^ set(expected)) or [key for key in expected if texts[key] != expected[key]]
        raise MismatchedArtifactError(
            f"{first.name} and {evaluation.name} were not run on the same questions: {len(odd)} differ, "
            f"for example {odd[0]!r}",
            hint="evaluate both on the same question file",
        )
    place = {key: row for row, key in enumerate(table.ids)}
    rows = np.array([place[key] for key in expected])
    return {name: table.column(name)[rows] for name in table.names}, list(expected)
