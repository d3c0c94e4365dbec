"""Fit the parameters that turn span scores into probabilities."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from rag.core.arrays import Bool, Float64
from rag.core.errors import DataError
from readers.manifest import Calibration

_PULL = 1e-4  # keeps T and b finite where the outcomes are separated perfectly


def fit_calibration(
    scores: Float64, correct: Bool, nulls: Float64, weights: Float64 | None = None
) -> Calibration:
    r"""Temperature T and null bias b that make held-out outcomes most likely.

        minimise −Σ_q w_q log Σ_{i ∈ right(q)} p_i(q; T, b) + 10⁻⁴·((log T)² + b²)

    with p from `readers.confidence.confidences`, and right(q) the candidates that are right
    answers, or "no answer here" where none of them is.

    Args:
        scores: (Q, N) candidate scores, -inf where a question has fewer than N.
        correct: (Q, N) which candidates are right.
        nulls: (Q,) null scores.
        weights: (Q,) w before they are scaled to add up to 1; None: all alike.

    Raises:
        DataError: if there is no question, or a score is NaN.

    Source:
        Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2 (temperature scaling).
    """
    if len(scores) == 0:
        raise DataError("no held-out question to calibrate on")
    if np.isnan(scores).any() or not np.isfinite(nulls).all():
        raise DataError("a held-out score is not a number")
    everything = np.column_stack([scores, nulls])  # (Q, N + 1)
    right = np.column_stack([correct, ~correct.any(axis=1)])
    unit = np.eye(everything.shape[1])[-1]

    def losses(parameters: Float64) -> Float64:
        logits = everything / np.exp(parameters[0]) + parameters[1] * unit
        return np.asarray(logsumexp(logits, axis=1) - logsumexp(np.where(right, logits, -np.inf), axis=1))

    log_temperature, bias = _least(losses, 2, np.ones(len(scores)) if weights is None else weights)
    return Calibration(
        temperature=round(float(np.exp(log_temperature)), 4), null_bias=round(bias, 4), questions=len(scores)
    )


def fit_chance(features: Float64, happened: Bool, weights: Float64) -> tuple[float, ...]:
    r"""Logistic regression: bias a and slopes b of p = σ(a + b·s) that make the outcomes most likely.

    Args:
        features, happened, weights: (Q, n) s, and for each question (Q,) the outcome and its weight.

    Source:
        Platt 1999, "Probabilistic Outputs for Support Vector Machines", with several scores.
    """
    inputs = np.column_stack([np.ones(len(features)), features])  # (Q, n + 1)
    fitted = _least(lambda parameters: _surprise(inputs @ parameters, happened), inputs.shape[1], weights)
    return tuple(round(value, 4) for value in fitted)


def fit_shift(logits: Float64, happened: Bool) -> tuple[float, float]:
    r"""Shift a and slope b of p = σ(a + b·z), to correct nearly calibrated probabilities with logits z.

    Few questions move them little: a has a normal prior around 0 with deviation 1, b around 1 with 0.3.

    Args:
        logits, happened: (Q,) z, and what was the case.
    """

    def losses(parameters: Float64) -> Float64:
        shift, slope = parameters
        prior = (shift**2 + (slope / 0.3) ** 2) / 2 / max(1, len(logits))
        return _surprise(shift + (1.0 + slope) * logits, happened) + prior

    shift, slope = _least(losses, 2, np.ones(len(logits)))
    return shift, max(0.0, 1.0 + slope)


def _surprise(logits: Float64, happened: Bool) -> Float64:
    """−ln σ(z) where it happened, else −ln(1 − σ(z))."""
    return np.logaddexp(0.0, np.where(happened, -logits, logits))


def _least(losses: Callable[[Float64], Float64], count: int, weights: Float64) -> list[float]:
    """The `count` parameters where the weighted mean of losses is least, pulled a little towards 0."""
    share = weights / weights.sum()
    best = minimize(lambda x: float(share @ losses(x) + _PULL * (x @ x)), np.zeros(count), method="BFGS")
    return [float(value) for value in best.x]
