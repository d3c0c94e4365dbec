"""Choices made on held-out questions with retrieved passages: ranking settings, temperature, null bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.metrics.calibration import calibration as measure_calibration
from readers.calibration import fit_calibration, fit_first
from readers.extractive.ranking import Ranked, ScoredPassages, confidences, first_signs, rank
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.manifest import Calibration
from readers.training.data import Example, is_right
from readers.training.efforts import HeldOut, choose_efforts

__all__ = ["Case", "Tuned", "fit_and_measure", "tune"]

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was chosen, and figures of the choice on the held-out questions (percent, except "ece")."""

    settings: ReaderSettings
    calibration: Calibration
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """What was found for a held-out question: with all its passages, or without those that hold an answer.

    Attributes:
        number: of the question; a question's cases are fitted or measured together.
        label: of its set.
        weight: in the fit.
    """

    found: Ranked
    example: Example
    number: int
    label: str = ""
    weight: float = 1.0
    answerable: bool = True


def tune(
    reader: ExtractiveReader, sets: Mapping[str, Sequence[Example]], *, unanswerable_every: int = 4
) -> Tuned:
    """Choose retrieval weight and merging by exact match, then the null rule and calibration by likelihood.

    Each question is read once with all its passages; every `unanswerable_every`-th also counts a second time
    without the passages that hold an answer, so that "no answer" is fitted on questions that have none. Every
    set counts alike, however many questions it has.

    Args:
        reader: gives the network and the settings to start from.
        sets: by name, questions that were not learnt from, with what was retrieved for them.
        unanswerable_every: see above.

    Raises:
        DataError: there are fewer than two questions.
    """
    log = get_logger(__name__)
    held_out = [example for examples in sets.values() for example in examples]
    labels = [label for label, examples in sets.items() for _ in examples]
    weights = np.array([1.0 / (len(sets) * len(sets[label])) for label in labels])  # (Q,), 1 in all
    parts = [held_out[i : i + _CHUNK] for i in range(0, len(held_out), _CHUNK)]
    scored = [
        reader.score([e.question.text for e in part], [[c.passage for c in e.candidates] for e in part])
        for part in parts
    ]

    def ranked(settings: ReaderSettings, *, without_answers: bool = False) -> list[Ranked]:
        found: list[Ranked] = []
        for part, output in zip(parts, scored, strict=True):
            used = _without_answers(output, part) if without_answers else output
            found += rank(used, [[c.score for c in e.candidates] for e in part], settings)
        return found

    def right_first(settings: ReaderSettings) -> npt.NDArray[np.float64]:
        pairs = zip(ranked(settings), held_out, strict=True)
        return np.array([bool(r.candidates) and is_right(r.candidates[0].text, e) for r, e in pairs], float)

    options = [
        reader.settings.model_copy(update={"retrieval_weight": weight, "merge": merge})
        for merge in ("max", "sum")
        for weight in _WEIGHTS
    ]
    by_option = [float((weights * right_first(option)).sum()) for option in options]
    for option, value in zip(options, by_option, strict=True):
        log.info(
            "held-out EM %.2f  merge %s, weight %.2f", 100 * value, option.merge, option.retrieval_weight
        )
    best = options[int(np.argmax(by_option))]

    outcomes: list[tuple[ReaderSettings, float, Calibration, dict[str, float]]] = []
    for null in ("max", "mean", "min", "best"):
        settings = best.model_copy(update={"null": null})
        cases = []
        for answerable in (True, False):
            for number, found in enumerate(ranked(settings, without_answers=not answerable)):
                if found.candidates and (answerable or number % unanswerable_every == 0):
                    given = (held_out[number], number, labels[number], weights[number])
                    cases.append(Case(found, *given, answerable))
        outcomes.append((settings, *fit_and_measure(cases, settings.candidates)))
        log.info("null %s: %s", null, outcomes[-1][3])
    settings, _, calibration, figures = min(outcomes, key=lambda outcome: outcome[1])
    right = right_first(settings)
    em = {"em": round(100 * float((weights * right).sum()), 2)}
    if len(sets) > 1:
        own = {label: np.array([label == other for other in labels]) for label in sets}
        em |= {f"em {label}": round(100 * float(right[mine].mean()), 2) for label, mine in own.items()}
    held_out_reading = HeldOut(scored, parts, weights, settings, calibration, reader.model.depth)
    efforts, kept = choose_efforts(held_out_reading)
    return Tuned(settings.model_copy(update={"efforts": efforts}), calibration, {**em, **figures, **kept})


def fit_and_measure(cases: Sequence[Case], candidates: int) -> tuple[float, Calibration, dict[str, float]]:
    """Negative log-likelihood, calibration and figures of one null rule.

    The calibration is fitted on all cases, the figures are measured on each half of the questions with a fit
    on the other half: on the very questions it was fitted on, a confidence looks better than it is.

    Args:
        cases: of all sets.
        candidates: most answers a question has.

    Raises:
        DataError: there are fewer than two questions.
    """
    scores = np.full((len(cases), candidates), -np.inf)
    correct = np.zeros(scores.shape, bool)
    nulls = np.array([-1e4 if case.found.null is None else case.found.null for case in cases])
    number = np.array([case.number for case in cases])
    answerable = np.array([case.answerable for case in cases])
    weight = np.array([case.weight for case in cases])
    for index, case in enumerate(cases):
        found = case.found.candidates
        scores[index, : len(found)] = [candidate.score for candidate in found]
        if case.answerable:
            correct[index, : len(found)] = [is_right(candidate.text, case.example) for candidate in found]
    calibration = _fit(scores, correct, nulls, weight, answerable)
    chances = _chances(scores, correct, nulls, calibration)
    loss = float(-(weight * np.log(chances[:, 2])).sum() / weight.sum())

    crossed = np.zeros((len(cases), 3))
    for side in (0, 1):
        here, there = number % 2 == side, number % 2 != side  # a question's pairs stay together
        if not (here.any() and there.any()):
            raise DataError("fewer than two held-out questions to fit and to measure the confidence on")
        fitted = _fit(scores[there], correct[there], nulls[there], weight[there], answerable[there])
        crossed[here] = _chances(scores[here], correct[here], nulls[here], fitted)
    top, none, right = crossed.T
    silent = none > top
    figures = {
        "nll": round(float(-np.log(right).mean()), 4),
        "ece": _error(top[answerable], correct[answerable, 0]),
        "no_answer_recall": round(100 * float(silent[~answerable].mean()), 2) if (~answerable).any() else 0.0,
        "no_answer_false_alarms": round(100 * float(silent[answerable & correct[:, 0]].mean()), 2),
        "questions": float(answerable.sum()),
        "without_answer": float((~answerable).sum()),
    }
    labels = np.array([case.label for case in cases])
    if len(set(labels)) > 1:
        own = {label: answerable & (labels == label) for label in dict.fromkeys(labels.tolist())}
        figures |= {f"ece {label}": _error(top[mine], correct[mine, 0]) for label, mine in own.items()}
    return loss, calibration, figures


def _fit(
    scores: npt.NDArray[np.float64],
    correct: npt.NDArray[np.bool_],
    nulls: npt.NDArray[np.float64],
    weight: npt.NDArray[np.float64],
    answerable: npt.NDArray[np.bool_],
) -> Calibration:
    """Temperature and bias on all cases; the first answer's chance on those that a user would meet."""
    fitted = fit_calibration(scores, correct, nulls, weight)
    if not (answerable.any() and (nulls > -1e4).all()):
        return fitted
    chances = [
        np.append(*confidences(row[np.isfinite(row)], float(null), fitted))
        for row, null in zip(scores[answerable], nulls[answerable], strict=True)
    ]
    signs = np.array([first_signs(one) for one in chances])
    first = fit_first(signs, correct[answerable, 0], weight[answerable])
    return fitted.model_copy(update={"first": first})


def _error(confidence: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]) -> float:
    measured = measure_calibration(confidence, correct)
    return round(measured.ece, 4) if measured is not None else 0.0


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


def _without_answers(scored: ScoredPassages, part: Sequence[Example]) -> ScoredPassages:
    """The same output as if passages that hold an answer had not been retrieved."""
    kept = [
        index
        for index, row in enumerate(scored.rows)
        if not part[scored.pairs[row.group][0]].candidates[scored.pairs[row.group][1]].holds_answer
    ]
    return scored.only(kept)
