"""From a question's ranked candidates to probabilities of its answers and of "no answer"."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Float64
from readers.manifest import Calibration
from readers.ranking import Ranked

EMPTY_SIGNS = (1, 5, 13, 14)  # of `answer_signs`: those that tell whether passages hold an answer


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


def likelihoods(found: Ranked, calibration: Calibration) -> tuple[Float64, float]:
    r"""Probabilities of a question's candidates, and the probability that the passages read hold no answer.

    They are those of `confidences`, unless the calibration has fits for the first answer and for "no answer",
    with σ the logistic function and s `answer_signs`:

        p_1 = σ(first · (1, s)),  p_0 = (1 − p_1)·σ(empty · (1, s))

    and p_0 at most p_1 if σ(empty · (1, s)) ≤ ½: an unlikely answer alone does not mean that there is none.
    Readers that were calibrated before `empty` have `none` in its place, without this limit. The other
    candidates share the remaining probability, none being likelier than the first.
    """
    p, none = confidences(found.scores, found.null, calibration)
    if calibration.first is None or found.null is None or not found.candidates:
        return p, none
    signs = answer_signs(found, p, none)
    first = _chance(calibration.first, signs)
    if calibration.empty is not None:
        nothing = float(chance_of_none(first, _chance(calibration.empty, signs)))
    elif calibration.none is not None:
        nothing = (1.0 - first) * _chance(calibration.none, signs)
    else:
        nothing = (1.0 - first) * none / max(1.0 - p[0], 1e-12)
    rest = p[1:] * ((1.0 - first - nothing) / max(float(p[1:].sum()), 1e-12))
    return np.append(first, np.minimum(rest, first)), float(nothing)


def chance_of_none(first: npt.ArrayLike, empty: npt.ArrayLike) -> Float64:
    """p_0 of `likelihoods` from p_1 and σ(empty · (1, s)).

    Example:
        >>> chance_of_none([0.25, 0.25], [0.4, 0.6]).round(2).tolist()
        [0.25, 0.45]
    """
    first, empty = np.asarray(first, np.float64), np.asarray(empty, np.float64)
    nothing = (1.0 - first) * empty
    return np.where(empty > 0.5, nothing, np.minimum(nothing, first))


def _chance(fitted: Sequence[float], signs: Float64) -> float:
    bias, *slopes = fitted
    return 1.0 / (1.0 + float(np.exp(-bias - signs[: len(slopes)] @ np.array(slopes))))


def answer_signs(found: Ranked, p: Float64, none: float) -> Float64:
    """Features (17,) that predict whether the first answer is right, and whether there is one.

    0, 1: ln(p_1 / Σ of the other answers), ln(p_1 / p_0). 2, 3, 4: logarithms of the number of passages read,
    of the rank of its passage by retrieval score, and of the answer's length in characters plus 1. 5: the
    passage logit of its passage. 6: ln(p_1 / p_2). 7: logarithm of the question's length in tokens.
    8: entropy of all p. 9: logarithm of the answer's length in words plus 1. 10, 11: `lead` and `rival` of
    `Ranked`. 12: whether the answer has the form that is asked for (1), has not (−1), or none is asked for
    (0). 13: `near` of `Ranked`. 14: logarithm of its passage's length in words plus 1. 15: whether it has a
    digit.

    Args:
        p, none: results of `confidences`.
    """
    text = found.candidates[0].text
    first, others, nothing = (max(float(x), 1e-12) for x in (p[0], p[1:].sum(), none))
    odds = np.clip(np.log([first / others, first / nothing]), -20.0, 20.0)
    seen = np.log([found.passages, 1 + found.place, 1 + len(text)])
    margin = min(np.log(first / max(float(p[1]), 1e-12)), 20.0) if len(p) > 1 else 20.0
    shares = np.maximum([*p, none], 1e-12)
    entropy = -float((shares * np.log(shares)).sum())
    length, has_digit = np.log1p(len(text.split())), any(map(str.isdigit, text))
    near = found.lead, found.rival, found.fit, found.near, np.log1p(found.words), has_digit, found.cell
    sizes = found.relevance, margin, np.log(found.question_tokens)
    return np.array([*odds, *seen, *sizes, entropy, length, *near], np.float64)


def confidence_of_first(found: Ranked, calibration: Calibration) -> float:
    """How likely a question's best answer is; 0 without any."""
    return float(likelihoods(found, calibration)[0][0]) if found.candidates else 0.0
