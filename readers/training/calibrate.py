"""Choices made on held-out questions with retrieved passages: ranking settings, temperature, null bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.text import exact_match, f1
from rag.metrics.calibration import calibration as measure_calibration
from readers.calibration import fit_calibration
from readers.extractive.inference import RowScores
from readers.extractive.ranking import Ranked, ScoredPassages, confidences, rank
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import Calibration, ReaderSettings

__all__ = ["HeldOut", "Tuned", "tune"]

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A question that was not trained on, its answers, and what was retrieved for it.

    Attributes:
        has_answer: for each passage whether it holds an answer.
    """

    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]
    scores: tuple[float, ...]
    has_answer: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was chosen, and figures of the choice on the held-out questions (percent, except "ece")."""

    settings: ReaderSettings
    calibration: Calibration
    figures: dict[str, float]


def tune(reader: ExtractiveReader, held_out: Sequence[HeldOut], *, unanswerable_every: int = 4) -> Tuned:
    """Choose retrieval weight and merging by exact match, then the null rule and calibration by likelihood.

    Each question is read once with all its passages; every `unanswerable_every`-th also counts a second time
    without the passages that hold an answer, so that "no answer" is fitted on questions that have none.
    """
    log = get_logger(__name__)
    parts = [held_out[i : i + _CHUNK] for i in range(0, len(held_out), _CHUNK)]
    scored = [reader.score([h.question for h in part], [h.passages for h in part]) for part in parts]

    def ranked(settings: ReaderSettings, *, without_answers: bool = False) -> list[Ranked]:
        found: list[Ranked] = []
        for part, output in zip(parts, scored, strict=True):
            used = _without_answers(output, part) if without_answers else output
            found += rank(used, [h.scores for h in part], settings)
        return found

    def score_em(settings: ReaderSettings) -> float:
        pairs = zip(ranked(settings), held_out, strict=True)
        return float(np.mean([bool(r.candidates) and _right(r.candidates[0].text, h) for r, h in pairs]))

    options = [
        reader.settings.model_copy(update={"retrieval_weight": weight, "merge": merge})
        for merge in ("max", "sum")
        for weight in _WEIGHTS
    ]
    by_option = [score_em(option) for option in options]
    for option, value in zip(options, by_option, strict=True):
        log.info(
            "held-out EM %.2f  merge %s, weight %.2f", 100 * value, option.merge, option.retrieval_weight
        )
    best = options[int(np.argmax(by_option))]

    outcomes: list[tuple[float, ReaderSettings, Calibration, dict[str, float]]] = []
    for null in ("max", "mean", "min", "best"):
        settings = best.model_copy(update={"null": null})
        answers = list(zip(ranked(settings), held_out, strict=True))
        removed = list(zip(ranked(settings, without_answers=True), held_out, strict=True))
        removed = [pair for pair in removed[::unanswerable_every] if pair[0].candidates]
        removed = [(r, replace(h, answers=())) for r, h in removed]
        outcomes.append(_fit(answers, removed, settings))
        log.info("null %s: %s", null, outcomes[-1][3])
    _, settings, calibration, figures = min(outcomes, key=lambda outcome: outcome[0])
    return Tuned(settings, calibration, {"em": round(100 * max(by_option), 2), **figures})


def _close(text: str, held_out: HeldOut) -> bool:
    """Right for the purpose of confidence: there is one annotation; answers as good overlap it."""
    return f1(text, held_out.answers) >= 0.5


def _right(text: str, held_out: HeldOut) -> bool:
    return exact_match(text, held_out.answers)


def _fit(
    answers: list[tuple[Ranked, HeldOut]], removed: list[tuple[Ranked, HeldOut]], settings: ReaderSettings
) -> tuple[float, ReaderSettings, Calibration, dict[str, float]]:
    """Negative log-likelihood, settings, calibration and figures of one null rule.

    The calibration is fitted on all questions, the figures are measured on each half of them with a fit on
    the other half: on the very questions it was fitted on, a confidence looks better than it is.
    """
    pairs = [pair for pair in answers if pair[0].candidates] + removed
    scores = np.full((len(pairs), settings.candidates), -np.inf)
    correct = np.zeros(scores.shape, bool)
    nulls = np.zeros(len(pairs))
    for index, (found, held_out) in enumerate(pairs):
        count = len(found.candidates)
        scores[index, :count] = [candidate.score for candidate in found.candidates]
        correct[index, :count] = [_close(candidate.text, held_out) for candidate in found.candidates]
        nulls[index] = found.null if found.null is not None else -1e4
    calibration = fit_calibration(scores, correct, nulls)
    loss = float(-np.log(_chances(scores, correct, nulls, calibration)[:, 2]).mean())

    numbers = {held_out.question: number % 2 for number, (_, held_out) in enumerate(answers)}
    half = np.array([numbers[held_out.question] for _, held_out in pairs])  # a question's pairs stay together
    crossed = np.zeros((len(pairs), 3))
    for side in (0, 1):
        here, there = half == side, half != side
        if not here.any():
            raise DataError("fewer than two held-out questions to fit and to measure the confidence on")
        if there.any():
            fitted = fit_calibration(scores[there], correct[there], nulls[there])
            crossed[here] = _chances(scores[here], correct[here], nulls[here], fitted)
    top, none, right = crossed.T
    first = len(pairs) - len(removed)
    measured = measure_calibration(top, correct[:, 0])
    assert measured is not None
    figures = {
        "nll": round(float(-np.log(right).mean()), 4),
        "ece": round(measured.ece, 6),
        "no_answer_recall": round(100 * float((none[first:] > top[first:]).mean()), 2) if removed else 0.0,
        "no_answer_false_alarms": round(
            100 * float((none[:first] > top[:first])[correct[:first, 0]].mean()), 2
        ),
        "questions": float(first),
        "without_answer": float(len(removed)),
    }
    return loss, settings, calibration, figures


def _chances(
    scores: npt.NDArray[np.float64],
    correct: npt.NDArray[np.bool_],
    nulls: npt.NDArray[np.float64],
    calibration: Calibration,
) -> npt.NDArray[np.float64]:
    """Probability of each question's first answer, of "no answer", and of what is right, (Q, 3)."""
    rows = []
    for row, hit, null in zip(scores, correct, nulls, strict=True):
        chances, none = confidences(row[np.isfinite(row)], float(null), calibration)
        right = float((chances * hit[: len(chances)]).sum()) if hit.any() else none
        rows.append((chances[0], none, max(right, 1e-12)))
    return np.array(rows)


def _without_answers(scored: ScoredPassages, part: Sequence[HeldOut]) -> ScoredPassages:
    """The same output as if passages that hold an answer had not been retrieved."""
    kept = [
        index
        for index, row in enumerate(scored.rows)
        if not part[scored.pairs[row.group][0]].has_answer[scored.pairs[row.group][1]]
    ]
    chosen = np.array(kept, np.int64)
    old = scored.scores
    scores = RowScores(*(getattr(old, name)[chosen] for name in RowScores.__slots__))
    return replace(scored, rows=[scored.rows[i] for i in kept], scores=scores)
