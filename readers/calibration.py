"""Fit the parameters that turn span scores into probabilities."""

from collections.abc import Callable

import numpy as np
import torch

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
    everything = torch.from_numpy(np.concatenate([scores, nulls[:, None]], axis=1))  # (Q, N + 1)
    right = torch.from_numpy(np.concatenate([correct, ~correct.any(axis=1, keepdims=True)], axis=1))
    share = torch.ones(len(scores), dtype=torch.float64) if weights is None else torch.from_numpy(weights)
    share = share / share.sum()
    absent = torch.isinf(everything)
    known = everything.masked_fill(absent, 0.0)  # −inf would make gradients NaN
    unit = torch.zeros(everything.shape[1], dtype=torch.float64)
    unit[-1] = 1.0

    def loss(parameters: torch.Tensor) -> torch.Tensor:
        logits = known / parameters[0].exp() + parameters[1] * unit
        logp = logits.masked_fill(absent, float("-inf")).log_softmax(-1)
        return -(share * logp.masked_fill(~right, float("-inf")).logsumexp(-1)).sum()

    log_temperature, bias = _least(loss, 2)
    return Calibration(
        temperature=round(float(np.exp(log_temperature)), 4), null_bias=round(bias, 4), questions=len(scores)
    )


def fit_chance(features: Float64, happened: Bool, weights: Float64) -> tuple[float, ...]:
    r"""Logistic regression: bias a and slopes b of p = σ(a + b·s) that make the outcomes most likely.

    Args:
        features: (Q, n) s.
        happened: (Q,) such as whether the first answer is right.
        weights: (Q,) of the questions.

    Source:
        Platt 1999, "Probabilistic Outputs for Support Vector Machines", with several scores.
    """
    inputs = torch.from_numpy(np.column_stack([np.ones(len(features)), features]))  # (Q, n + 1)
    share, wanted = torch.from_numpy(weights / weights.sum()), torch.from_numpy(happened.astype(np.float64))

    def loss(parameters: torch.Tensor) -> torch.Tensor:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            inputs @ parameters, wanted, reduction="none"
        )
        return (share * losses).sum()

    return tuple(round(value, 4) for value in _least(loss, inputs.shape[1]))


def fit_shift(logits: Float64, happened: Bool) -> tuple[float, float]:
    r"""Shift a and slope b of p = σ(a + b·z), to correct nearly calibrated probabilities with logits z.

    Few questions move them little: a has a normal prior around 0 with deviation 1, b around 1 with 0.3.

    Args:
        logits: (Q,) z.
        happened: (Q,).
    """
    z, wanted = torch.from_numpy(logits), torch.from_numpy(happened.astype(np.float64))
    count = max(1, len(logits))

    def loss(parameters: torch.Tensor) -> torch.Tensor:
        prior = (parameters[0].square() + (parameters[1] / 0.3).square()) / 2
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            parameters[0] + (1.0 + parameters[1]) * z, wanted, reduction="sum"
        )
        return (losses + prior) / count

    shift, slope = _least(loss, 2)
    return shift, max(0.0, 1.0 + slope)


def _least(loss: Callable[[torch.Tensor], torch.Tensor], count: int) -> list[float]:
    """The `count` parameters where a loss is least, pulled a little towards 0."""
    parameters = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(parameters) + _PULL * parameters.square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    found: list[float] = parameters.detach().tolist()
    return found
