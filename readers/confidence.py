"""From a question's ranked candidates to probabilities of its answers and of "no answer", and their
fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rag.core.arrays import Bool, Float64
from rag.core.errors import DataError
from rag.core.types import Answer, AnswerSet
from readers.manifest import Calibration
from readers.protocols import ReadRequest

_PULL = 1e-4  # keeps fitted parameters finite where the outcomes are separated perfectly


@dataclass(frozen=True, slots=True)
class Span:
    """An answer before its confidence is known.

    Attributes:
        passage_index: number of its passage in the question's list.
        bounds: first character of that passage's text and one past the last; None if the answer does
            not stand there literally ("yes", or the words of a generator).
    """

    text: str
    score: float
    passage_index: int
    bounds: tuple[int, int] | None = None


class AnswerFeatures(NamedTuple):
    """What predicts whether the first answer to a question is right, and whether the passages hold
    none.

    Attributes:
        lead: by how much the answer scores above the second.
        margin: by how much the best span of its passage scores above "not here".
        relevance: the passage logit of its passage; 0 for a network without such logits.
        length: logarithm of the number of its words plus 1.
        overlap: share of the question's content words in and near the answer.
    """

    lead: float = 0.0
    margin: float = 0.0
    relevance: float = 0.0
    length: float = 0.0
    overlap: float = 0.0

    @property
    def for_right(self) -> tuple[float, ...]:
        """Inputs of `Calibration.right`."""
        return (self.lead, self.margin, self.relevance, self.length)

    @property
    def for_absent(self) -> tuple[float, ...]:
        """Inputs of `Calibration.absent`."""
        return (self.margin, self.overlap)


@dataclass(frozen=True, slots=True)
class Ranked:
    """One question's different answers, best first, and its null score (None: the model has none).

    Attributes:
        features: of the first answer; of no use without answers.
        reading: what was read for it, if that is counted: "passages" and "token_layers".
    """

    answers: Sequence[Span]
    null: float | None
    features: AnswerFeatures = field(default_factory=AnswerFeatures)
    reading: Mapping[str, int] = field(default_factory=dict)

    @property
    def scores(self) -> Float64:
        """Scores of the answers."""
        return np.array([answer.score for answer in self.answers], np.float64)

    def answer_set(
        self, request: ReadRequest, likelihoods: tuple[Float64, float], n_best: int
    ) -> AnswerSet:
        """The best answers with their `likelihoods`, and that of no answer (1 if there is none)."""
        of_answers, of_none = likelihoods
        answers = []
        for span, p in zip(self.answers[:n_best], of_answers[:n_best].tolist(), strict=True):
            evidence = request.evidence(span.passage_index, span.bounds)
            answers.append(Answer(span.text, span.score, p, evidence))
        none = of_none if answers else 1.0
        return AnswerSet(request.question, tuple(answers), none, reading=self.reading)


def confidences(
    scores: Float64, null: float | None, calibration: Calibration
) -> tuple[Float64, float]:
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
    r"""Probabilities of a question's candidates, and the probability that the passages read hold no
    answer.

    They are those of `confidences`, unless the calibration has a logistic regression for each:

        p_1 = σ(right · (1, s)),  p_0 = σ(absent · (1, s))

    with s the features `for_right` and `for_absent` of the first answer. The other candidates
    share what remains as in `confidences`, none being likelier than the first.
    """
    p, p_null = confidences(ranked.scores, ranked.null, calibration)
    if calibration.right is None or not ranked.answers:
        return p, p_null
    first = chance(calibration.right, ranked.features.for_right)
    if calibration.absent is not None:
        p_null = chance(calibration.absent, ranked.features.for_absent)
    rest = p[1:] * (max(1.0 - first - p_null, 0.0) / max(float(p[1:].sum()), 1e-12))
    return np.append(first, np.minimum(rest, first)), p_null


def chance(fitted: Sequence[float], features: Sequence[float] | Float64) -> float:
    """σ of a bias and slopes, the first of `fitted` being the bias."""
    bias, *slopes = fitted
    return 1.0 / (1.0 + float(np.exp(-bias - np.dot(features, slopes))))


def fit_calibration(
    scores: Float64, correct: Bool, nulls: Float64, weights: Float64
) -> Calibration:
    r"""Temperature T and null bias b that make held-out outcomes most likely.

        minimise −Σ_q w_q log Σ_{i ∈ right(q)} p_i(q; T, b) + 10⁻⁴·((log T)² + b²)

    with p from `confidences`, and right(q) the candidates that are right
    answers, or "no answer here" where none of them is.

    Args:
        scores: (Q, N) candidate scores, -inf where a question has fewer than N.
        correct: (Q, N) which candidates are right.
        nulls: (Q,) null scores.
        weights: (Q,) w before they are scaled to add up to 1.

    Raises:
        DataError: a score is NaN.

    Source:
        Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2 (temperature
        scaling).
    """
    from scipy.special import logsumexp

    everything = np.column_stack([scores, nulls])  # (Q, N + 1)
    if np.isnan(everything).any():
        raise DataError(
            "scores of held-out questions are NaN", hint="train again with a lower learning_rate"
        )
    right = np.column_stack([correct, ~correct.any(axis=1)])

    def losses(parameters: Float64) -> Float64:
        logits = everything / np.exp(parameters[0])
        logits[:, -1] += parameters[1]
        return np.asarray(
            logsumexp(logits, axis=1) - logsumexp(np.where(right, logits, -np.inf), axis=1)
        )

    log_temperature, bias = _least(losses, 2, weights)
    return Calibration(
        temperature=round(float(np.exp(log_temperature)), 4),
        null_bias=round(bias, 4),
        questions=len(scores),
    )


def fit_chance(features: Float64, happened: Bool, weights: Float64) -> tuple[float, ...]:
    r"""Logistic regression: bias a and slopes b of p = σ(a + b·s) that make the outcomes most
    likely.

    Args:
        features, happened, weights: (Q, n) s, and for each question (Q,) the outcome and its
            weight.

    Source:
        Platt 1999, "Probabilistic Outputs for Support Vector Machines", with several scores.
    """
    inputs = np.column_stack([np.ones(len(features)), features])  # (Q, n + 1)
    fitted = _least(
        lambda parameters: _surprise(inputs @ parameters, happened), inputs.shape[1], weights
    )
    return tuple(round(value, 4) for value in fitted)


def fit_shift(logits: Float64, happened: Bool) -> tuple[float, float]:
    r"""Shift a and slope b of p = σ(a + b·z), to correct nearly calibrated probabilities with
    logits z.

    Few questions move them little: a has a normal prior around 0 with deviation 1, b around 1 with
    0.3.

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
    """The `count` parameters where the weighted mean of losses is least, pulled a little towards
    0.
    """
    from scipy.optimize import minimize  # a third of a second, and needed to fit alone

    share = weights / weights.sum()
    best = minimize(
        lambda x: float(share @ losses(x) + _PULL * (x @ x)), np.zeros(count), method="BFGS"
    )
    return [float(value) for value in best.x]
