"""Whether made questions order settings as people's questions do: Kendall's tau.

    python -m rag.bench.questions.agreement --people people/bm25 people/dense … \
        --made made/bm25 made/dense …

Each folder is a result of `rag evaluate`; both lists name the same settings in the same order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter, run
from scipy.stats import kendalltau

from rag.core.arrays import Float64
from rag.core.errors import ConfigError
from rag.eval.compare import aligned_figures
from rag.eval.results import load_evaluations
from rag.metrics.significance import Interval

FIGURES = ("mrr", "top1", "top5")
_DRAWS = 1000
_LEAST_SETTINGS = 3
Folders = Annotated[list[Path], Parameter(consume_multiple=True)]


def measure_agreement(people: Float64, made: Float64, seed: int = 0) -> tuple[Interval, float]:
    """Tau between the orders of S settings by the means of two sets of questions.

    Args:
        people: (S, n) figures of people's questions.
        made: (S, m) figures of made questions.

    Returns:
        Tau, with an interval from a bootstrap over the questions of both sets; and what can be
        reached: tau of two random halves of people's questions, the mean of the draws.
    """
    draw = np.random.default_rng(seed)
    taus = []
    halves = []
    for _ in range(_DRAWS):
        drawn_people = draw.choice(people, people.shape[1], axis=1)
        drawn_made = draw.choice(made, made.shape[1], axis=1)
        taus.append(_tau(drawn_people, drawn_made))
        first, second = np.array_split(draw.permutation(people, axis=1), 2, axis=1)
        halves.append(_tau(first, second))
    low, high = np.nanpercentile(taus, [2.5, 97.5]).tolist()
    tau = Interval(_tau(people, made), low, high, made.shape[1])
    return tau, float(np.nanmean(halves))


def _tau(first: Float64, second: Float64) -> float:
    """Tau-b of the settings' means; NaN where a set tells no settings apart."""
    return float(kendalltau(first.mean(1), second.mean(1)).statistic)


def read_figures(folders: Sequence[Path]) -> dict[str, Float64]:
    """Each figure (S, n) of the questions for which all S evaluations have it.

    Raises:
        MismatchedArtifactError: the evaluations asked other questions.
    """
    evaluations = load_evaluations(folders)
    tables = [aligned_figures(evaluation, evaluations[0]) for evaluation in evaluations]
    figures = {}
    for name in FIGURES:
        values = np.array([table[name] for table in tables])
        figures[name] = values[:, ~np.isnan(values).any(axis=0)]
    return figures


def main(*, people: Folders, made: Folders) -> None:
    """Print tau for the reciprocal rank and the accuracies.

    Args:
        people: Results on people's questions.
        made: Results on made questions, of the same settings in the same order.
    """
    if len(people) != len(made) or len(people) < _LEAST_SETTINGS:
        raise ConfigError(
            f"{len(people)} and {len(made)} folders, expected as many, and at least {_LEAST_SETTINGS}"
        )
    figures_of_people = read_figures(people)
    figures_of_made = read_figures(made)
    for name in FIGURES:
        of_people = figures_of_people[name]
        of_made = figures_of_made[name]
        tau, halves = measure_agreement(of_people, of_made)
        asked = f"{of_people.shape[1]} of people and {of_made.shape[1]} made"
        print(f"{name}: tau {tau:.2f} ({asked}); two halves of people's {halves:.2f}")


if __name__ == "__main__":
    run(main)
