"""From a question's ranked candidates to probabilities of its answers and of "no answer"."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Float64
from readers.manifest import Calibration
from readers.ranking import Ranked

# Of `confidence_features`: those that tell whether passages hold an answer.
NO_ANSWER_FEATURES = (1, 5, 13, 14)


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

    They are those of `confidences`, unless the calibration has fits for the first answer and for "no answer",
    with σ the logistic function and s `confidence_features`:

        p_1 = σ(first · (1, s)),  p_0 = (1 − p_1)·σ(empty · (1, s))

    and p_0 at most p_1 if σ(empty · (1, s)) ≤ ½: an unlikely answer alone does not mean that there is none.
    Readers that were calibrated before `empty` have `none` in its place, without this limit. The other
    candidates share the remaining probability, none being likelier than the first.
    """
    p, p_null = confidences(ranked.scores, ranked.null, calibration)
    if calibration.first is None or ranked.null is None or not ranked.answers:
        return p, p_null
    features = confidence_features(ranked, p, p_null)
    first = _chance(calibration.first, features)
    if calibration.empty is not None:
        p_no_answer = float(chance_of_none(first, _chance(calibration.empty, features)))
    elif calibration.none is not None:
        p_no_answer = (1.0 - first) * _chance(calibration.none, features)
    else:
        p_no_answer = (1.0 - first) * p_null / max(1.0 - p[0], 1e-12)
    rest = p[1:] * ((1.0 - first - p_no_answer) / max(float(p[1:].sum()), 1e-12))
    return np.append(first, np.minimum(rest, first)), float(p_no_answer)


def chance_of_none(first: npt.ArrayLike, unanswerable: npt.ArrayLike) -> Float64:
    """p_0 of `likelihoods` from p_1 and σ(empty · (1, s)).

    Example:
        >>> chance_of_none([0.25, 0.25], [0.4, 0.6]).round(2).tolist()
        [0.25, 0.45]
    """
    first, p_unanswerable = np.asarray(first, np.float64), np.asarray(unanswerable, np.float64)
    p_no_answer = (1.0 - first) * p_unanswerable
    return np.where(p_unanswerable > 0.5, p_no_answer, np.minimum(p_no_answer, first))


def _chance(fitted: Sequence[float], features: Float64) -> float:
    bias, *slopes = fitted
    return 1.0 / (1.0 + float(np.exp(-bias - features[: len(slopes)] @ np.array(slopes))))


def confidence_features(ranked: Ranked, p: Float64, p_null: float) -> Float64:
    """Features (17,) that predict whether the first answer is right, and whether there is one.

    0, 1: ln(p_1 / Σ of the other answers), ln(p_1 / p_0). 2, 3, 4: logarithms of the number of passages read,
    of the rank of its passage by retrieval score, and of the answer's length in characters plus 1. 5: the
    passage logit of its passage. 6: ln(p_1 / p_2). 7: logarithm of the question's length in tokens.
    8: entropy of all p. 9: logarithm of the answer's length in words plus 1. 10 to 13: `margin_over_null`,
    `best_other_margin`, `form_match` and `question_overlap` of `Ranked`. 14: logarithm of its passage's
    length in words plus 1. 15: whether it has a digit. 16: `cell` of `Ranked`.

    Args:
        p, p_null: results of `confidences`.
    """
    text = ranked.answers[0].text
    first, others, null = (max(float(x), 1e-12) for x in (p[0], p[1:].sum(), p_null))
    odds = np.clip(np.log([first / others, first / null]), -20.0, 20.0)
    seen = np.log([ranked.passages, 1 + ranked.place, 1 + len(text)])
    margin = min(np.log(first / max(float(p[1]), 1e-12)), 20.0) if len(p) > 1 else 20.0
    shares = np.maximum([*p, p_null], 1e-12)
    entropy = -float((shares * np.log(shares)).sum())
    length, has_digit = np.log1p(len(text.split())), any(map(str.isdigit, text))
    margins = ranked.margin_over_null, ranked.best_other_margin
    rules = ranked.form_match, ranked.question_overlap, np.log1p(ranked.words), has_digit, ranked.cell
    sizes = ranked.relevance, margin, np.log(ranked.question_tokens)
    return np.array([*odds, *seen, *sizes, entropy, length, *margins, *rules], np.float64)


def confidence_of_first(ranked: Ranked, calibration: Calibration) -> float:
    """How likely a question's best answer is; 0 without any."""
    return float(likelihoods(ranked, calibration)[0][0]) if ranked.answers else 0.0
