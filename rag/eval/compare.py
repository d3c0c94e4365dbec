"""Compare evaluations of the same questions: differences with intervals, p-values with Holm's
correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rag.core.arrays import Float64
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.eval.figures import find_figure, main_figures
from rag.eval.results import Evaluation
from rag.eval.settings import EvaluationSettings
from rag.eval.summary import figure_columns
from rag.metrics.significance import PairedTest, compare_paired, holm


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of two systems.

    Attributes:
        a, b: names of the systems.
        value_a, value_b: means over the questions where both systems have the figure.
        result: the paired test; `result.difference` is b - a.
        p_holm: p-value corrected for all comparisons made together.
    """

    figure: str
    a: str
    b: str
    value_a: float
    value_b: float
    result: PairedTest
    p_holm: float


def compare_evaluations(evaluations: Sequence[Evaluation]) -> list[Comparison]:
    """Compare every system with the first.

    Args:
        evaluations: two or more, over the same questions in any order, with different names.

    Returns:
        One comparison per figure and pair; `p_holm` is corrected over all of them.

    Raises:
        ConfigError: fewer than two evaluations, names that are not distinct, or no figure that all
            have.
        MismatchedArtifactError: question sets or answer profiles differ.
    """
    names = [evaluation.name for evaluation in evaluations]
    if len(evaluations) < 2 or len(set(names)) != len(names):
        raise ConfigError(
            f"expected two or more evaluations with distinct names, found {len(names)}: {', '.join(names)}"
        )
    # The main figures that all have, if all have retrieved the passages that a figure looks at.
    depths = {depth_of(evaluation) for evaluation in evaluations}
    common = set.intersection(*(set(evaluation.metrics["figures"]) for evaluation in evaluations))
    shared = []
    # Macro-F1 is no mean over claims.
    for name in main_figures(common - {"passage_em@100", "macro_f1"}):
        depth = find_figure(name).depth
        is_comparable = len(depths) == 1 if depth is None else depth <= min(depths)
        if is_comparable:
            shared.append(name)
    if not shared:
        raise ConfigError(
            "these evaluations share no figure",
            hint="evaluate all with the same {ks}",
            arguments=["ks"],
        )
    first = aligned_figures(evaluations[0], evaluations[0])
    rows = []
    for evaluation in evaluations[1:]:
        other = aligned_figures(evaluation, evaluations[0])
        for figure in shared:
            a = first[figure]
            b = other[figure]
            both = ~np.isnan(a + b)
            means = (float(a[both].mean()), float(b[both].mean()))
            result = compare_paired(a, b)
            row = Comparison(figure, names[0], evaluation.name, *means, result, result.p_value)
            rows.append(row)
    corrected = holm([row.result.p_value for row in rows])
    return [replace(row, p_holm=p_holm) for row, p_holm in zip(rows, corrected, strict=True)]


def depth_of(evaluation: Evaluation) -> int:
    """Number of passages retrieved per question."""
    settings = evaluation.metrics.get("settings", {})
    return max(*settings.get("ks", EvaluationSettings().ks), settings.get("read", 0))


def aligned_figures(evaluation: Evaluation, first: Evaluation) -> dict[str, Float64]:
    """Figures (n,) of an evaluation in the order of the questions of the first.

    Raises:
        MismatchedArtifactError: question sets or answer profiles differ.
    """
    for key, label in (("profile", "answer profile"), ("n", "number of questions")):
        if first.metrics[key] != evaluation.metrics[key]:
            raise MismatchedArtifactError(
                f"{first.name} and {evaluation.name} differ in {label}: "
                f"{first.metrics[key]!r} and {evaluation.metrics[key]!r}",
                hint="evaluate both on the same questions with the same profile",
            )
    expected = {record.id: (record.question, record.answers) for record in first.records()}
    scores: dict[str, Mapping[str, float | None]] = {}
    odd = set(expected)
    for record in evaluation.records():
        scores[record.id] = record.scores
        question, answers = expected.get(record.id, ("", []))
        # Where a run of ids alone was judged, there are no answers.
        has_same_answers = not answers or not record.answers or answers == record.answers
        if record.question == question and has_same_answers:
            odd.remove(record.id)
    if odd:
        raise MismatchedArtifactError(
            f"{first.name} and {evaluation.name} were not run on the same questions: {len(odd)} differ, "
            f"for example {min(odd)!r}",
            hint="evaluate both on the same question file",
        )
    return figure_columns([scores[name] for name in expected])
