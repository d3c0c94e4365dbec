"""From a question's ranked candidates to probabilities of its answers and of "no answer"."""

from collections.abc import Sequence

import numpy as np

from rag.core.arrays import Float64
from readers.manifest import Calibration
from readers.ranking import Ranked

# Of `Ranked.features`: those that tell whether the first answer is right, and whether passages hold any.
RIGHT_FEATURES, ABSENT_FEATURES = (0, 1, 2, 3), (1, 4)


def confidences(scores: Float64, null: float | None, calibration: Calibration) -> tuple[Float64, float]:
    r"""Probabilities of the candidates and of "no answer here".

        p_i = exp(z_i / T) / (Σ_j exp(z_j / T) + exp(z_0 / T + b)),  p_0 likewise

    with z_0 the null score, T the temperature and b the null bias; without a null score p_0 = 0.

    Example:
        >>> p, none = confidences(np.array([2.0, 0.0]), 0.0, Calibration())
        >>> p.round(3).tolist(), round(none, 3)
        ([0.787, 0.107], 0.107)
    """
    logits = np.asarray(scores, np.float64) / calibration.temperature
    extra = -np.inf if null is None else null / calibration.temperature + calibration.null_bias
    everything = np.append(logits, extra)
    if not np.isfinite(everything).any():
        return np.zeros(len(logits)), 1.0
    weights = np.exp(everything - everything.max())
    weights /= weights.sum()
    return weights[:-1], float(weights[-1])


def likelihoods(ranked: Ranked, calibration: Calibration) -> tuple[Float64, float]:
    r"""Probabilities of a question's candidates, and the probability that the passages read hold no answer.

    They are those of `confidences`, unless the calibration has a logistic regression for each:

        p_1 = σ(right · (1, s)),  p_0 = σ(absent · (1, s))

    with s the `RIGHT_FEATURES` and the `ABSENT_FEATURES` of the question. The other candidates share what
    remains as in `confidences`, none being likelier than the first.
    """
    p, p_null = confidences(ranked.scores, ranked.null, calibration)
    if calibration.right is None or not ranked.answers:
        return p, p_null
    first = chance(calibration.right, ranked.features[list(RIGHT_FEATURES)])
    if calibration.absent is not None:
        p_null = chance(calibration.absent, ranked.features[list(ABSENT_FEATURES)])
    rest = p[1:] * (max(1.0 - first - p_null, 0.0) / max(float(p[1:].sum()), 1e-12))
    return np.append(first, np.minimum(rest, first)), p_null


def chance(fitted: Sequence[float], features: Float64) -> float:
    """σ of a bias and slopes, the first of `fitted` being the bias."""
    bias, *slopes = fitted
    return 1.0 / (1.0 + float(np.exp(-bias - features @ np.array(slopes))))


def confidence_of_first(ranked: Ranked, calibration: Calibration) -> float:
    """How likely a question's best answer is; 0 without any."""
    return float(likelihoods(ranked, calibration)[0][0]) if ranked.answers else 0.0
