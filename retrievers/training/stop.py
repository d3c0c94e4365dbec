"""Learn which questions need no further passage, from question sets whose numbers of hops are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from rag.config import DEFAULT_SEED
from rag.core.arrays import Bool, Float64
from rag.core.errors import ConfigError, DataError
from rag.core.types import Question
from rag.data.questions import draw_sample, read_questions
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.multihop import LearnedStop

_FOLDS = 5
_CERTAIN = 10.0  # the bias, if all training questions have the same label
_PENALTY = 1e-4


@dataclass(frozen=True, slots=True)
class StopFigures:
    """How well the rule after one hop separates complete from incomplete questions, on held-out ones.

    Attributes:
        hop: number of the hop after which the rule decides.
        complete, incomplete: number of questions that need no further hop, and of those that do.
        kept: share of the complete questions that are stopped.
        lost: share of the incomplete questions that are stopped.
    """

    hop: int
    complete: int
    incomplete: int
    kept: float
    lost: float

    def __str__(self) -> str:
        return (
            f"after hop {self.hop}: stops {self.kept:.1%} of {self.complete} complete questions and "
            f"{self.lost:.1%} of {self.incomplete} that need more (questions the rule was not fitted on)"
        )


def hops_of(question: Question) -> int:
    """Number of passages the question needs; 0 if the set does not state it."""
    if question.gold_are_alternatives and question.gold:
        return 1
    return question.hops or len(question.gold) or len(set(question.gold_passage_ids))


def learn_stop(
    files: Sequence[Path],
    encoder: str | Path,
    *,
    hops: int = 2,
    lost: float = 0.05,
    most: int = 1000,
    seed: int = DEFAULT_SEED,
) -> tuple[LearnedStop, list[StopFigures]]:
    """Fit a logistic decision on question vectors for each hop but the last, and measure it in five folds.

    Both labels have equal weight in the fit. The bias is then moved so that few incomplete questions are
    stopped: a needless hop costs time, a missing one costs the answer.

    Args:
        files: question sets, of one and of more hops.
        encoder: the index's encoder, on whose question vectors the rule decides.
        hops: maximum hops of the search that the rule is for.
        lost: tolerated share of incomplete questions that are stopped.
        most: maximum number of questions per set.

    Returns:
        The rule, and its figures on the held-out folds.

    Raises:
        ConfigError: fewer than two hops.
        DataError: no question's number of hops is known.
    """
    if hops < 2:
        raise ConfigError("one hop needs no stop rule", hint="set hops to 2 or more")
    questions = [
        question
        for path in files
        for question in draw_sample((q for q in read_questions(path) if hops_of(q)), most, seed)
    ]
    if not questions:
        raise DataError("no question states how many hops it needs", hint="give sets with gold passages")
    loaded = BiEncoder.load(encoder)
    vectors = loaded.encode_questions([question.text for question in questions]).astype(np.float64)
    needed = np.array([hops_of(question) for question in questions])
    fitted = [_fit_hop(hop, vectors, needed <= hop, lost) for hop in range(1, hops)]
    rule = LearnedStop(
        loaded.identity.weights_sha256,
        np.array([weights for weights, _, _ in fitted], np.float32),
        np.array([bias for _, bias, _ in fitted], np.float32),
    )
    return rule, [figures for _, _, figures in fitted]


def _fit_hop(hop: int, vectors: Float64, complete: Bool, lost: float) -> tuple[Float64, float, StopFigures]:
    counts = int(complete.sum()), int((~complete).sum())
    if not all(counts):
        share = float(counts[0] > 0)
        bias = _CERTAIN if counts[0] else -_CERTAIN
        return np.zeros(vectors.shape[1]), bias, StopFigures(hop, *counts, share, share)
    votes = np.zeros(len(vectors))
    for fold in range(_FOLDS):
        inside = np.arange(len(vectors)) % _FOLDS == fold
        weights, bias = _logistic(vectors[~inside], complete[~inside])
        votes[inside] = vectors[inside] @ weights + bias
    least = max(0.0, float(np.quantile(votes[~complete], 1.0 - lost)))
    stopped = votes > least
    weights, bias = _logistic(vectors, complete)
    figures = StopFigures(hop, *counts, float(stopped[complete].mean()), float(stopped[~complete].mean()))
    return weights, bias - least, figures


def _logistic(features: Float64, labels: Bool) -> tuple[Float64, float]:
    """The minimum of Σ_i c_i log(1 + exp(−y_i (w·x_i + b))) + λ/2 |w|², labels weighing 1."""
    signs = np.where(labels, 1.0, -1.0)
    shares = np.where(labels, 1.0 / max(1, labels.sum()), 1.0 / max(1, (~labels).sum()))

    def loss(point: Float64) -> tuple[float, Float64]:
        margins = signs * (features @ point[:-1] + point[-1])
        slopes = -signs * shares / (1.0 + np.exp(np.clip(margins, -500, 500)))
        value = float(shares @ np.logaddexp(0.0, -margins)) + 0.5 * _PENALTY * float(point[:-1] @ point[:-1])
        return value, np.append(features.T @ slopes + _PENALTY * point[:-1], slopes.sum())

    result = minimize(loss, np.zeros(features.shape[1] + 1), jac=True, method="L-BFGS-B")
    return result.x[:-1], float(result.x[-1])
