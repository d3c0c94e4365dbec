"""Choose efforts, which read less but keep most right answers, on held-out questions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from rag.core.arrays import Bool, Float64, Int64
from rag.data.examples import Example
from readers.confidence import confidence_of_first
from readers.extractive.settings import Effort, ReaderSettings
from readers.extractive.training.data import is_right
from readers.extractive.waves import ScoreRows, read_waves
from readers.manifest import Calibration
from readers.ranking import ScoredPassages, rank

BUDGETS = {"normal": 0.2, "low": 0.1}
"""By name, the share of full reading's token-layers that an effort may take, on average over the sets."""

MOST = 0.4
"""Share of full reading's mean token-layers that an effort may take on any one question."""

_WAVES = ((2, 3, 5, 10), (2, 4, 6, 8), (2, 4, 6), (2, 2, 4), (3, 4), (1, 2))
_DROPS = (None, 0.0, 1.5)
_ENOUGH = (0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.45, 0.55, 0.65, 0.8)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out questions that were read whole, and the reader that read them.

    Attributes:
        scored: scores of all passages, with the early head's score of every row.
        parts: the questions of each set.
        weights: (Q,) weights of the questions, which sum to 1.
        settings, calibration: settings and calibration of the finished reader.
        depth: layers of the network.
    """

    scored: Sequence[ScoredPassages]
    parts: Sequence[Sequence[Example]]
    weights: Float64
    settings: ReaderSettings
    calibration: Calibration
    depth: int

    def read(self, effort: Effort) -> tuple[Bool, Int64, Float64]:
        """(Q,) whether the first answer is right, token-layers, and confidence, with this effort."""
        chosen = self.settings.model_copy(update={"efforts": {"tried": effort}, "effort": "tried"})
        right, cost, likely = [], [], []
        for everything, examples in zip(self.scored, self.parts, strict=True):
            retrieval = [example.scores for example in examples]
            read, costs = read_waves(
                everything, retrieval, chosen, self.calibration, _recorded(everything), depth=self.depth
            )
            for found, paid, example in zip(rank(read, retrieval, chosen), costs, examples, strict=True):
                right.append(bool(found.candidates) and is_right(found.candidates[0].text, example))
                cost.append(paid.token_layers)
                likely.append(confidence_of_first(found, self.calibration))
        return np.array(right, bool), np.array(cost, np.int64), np.array(likely)


def _recorded(read: ScoredPassages) -> ScoreRows:
    """Reads by looking up the scores of an earlier reading."""
    number = {id(row): place for place, row in enumerate(read.rows)}
    return lambda rows, _: read.scores.take(np.array([number[id(row)] for row in rows], np.int64))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One effort: its token-layers and its right answers, as shares of full reading's."""

    effort: Effort
    cost: float
    kept: float


def choose_efforts(held_out: HeldOut) -> tuple[dict[str, Effort], dict[str, float]]:
    """For each budget, the effort with most right answers.

    Reading less can also correct answers: an answer from a passage far down the list is more often a wrong
    guess than the answer that all earlier passages lack.

    Returns:
        Efforts by name; and for each, in percent, its share of the token-layers and of the right answers.
    """
    results = list(_outcomes(held_out))
    efforts: dict[str, Effort] = {}
    figures: dict[str, float] = {}
    for name, budget in BUDGETS.items():
        affordable = [result for result in results if result.cost <= budget]
        if affordable:
            best = min(affordable, key=lambda result: (-round(result.kept, 4), result.cost))
            efforts[name] = best.effort
            figures[f"token-layers {name}"] = round(100 * best.cost, 1)
            figures[f"right answers kept {name}"] = round(100 * best.kept, 2)
    return efforts, figures


def _outcomes(held_out: HeldOut) -> Iterator[_Outcome]:
    """All efforts: what is read up to each wave does not depend on where the reading ends."""
    weights = held_out.weights
    whole, full_cost, _ = held_out.read(Effort())
    base = float((weights * whole).sum())
    most = max(1, round(MOST * float((weights * full_cost).sum())))
    for waves, drop in product(_WAVES, _DROPS if held_out.settings.skim_layer else (None,)):
        states = []
        for end in range(1, len(waves) + 1):
            effort = Effort(waves=waves[:end], enough=(1.0,) * (end - 1), drop=drop, most=most)
            states.append(held_out.read(effort))
        right, cost, likely = (np.stack([state[part] for state in states]) for part in range(3))
        for enough in product(_ENOUGH, repeat=len(waves) - 1):
            if any(later > earlier for earlier, later in pairwise(enough)):
                continue  # the more was read, the less certainty it takes to stop
            goes_on = np.cumprod(likely[:-1] < np.array(enough)[:, None], axis=0)
            last = goes_on.sum(axis=0)
            taken = np.arange(len(last))
            kept = float((weights * right[last, taken]).sum()) / max(base, 1e-9)
            share = float((weights * cost[last, taken]).sum() / (weights * full_cost).sum())
            yield _Outcome(Effort(waves=waves, enough=enough, drop=drop, most=most), share, kept)
