"""Fit a reader's confidence to a corpus, from a few questions that people would ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag.core.arrays import Bool, Float64
from rag.core.errors import ConfigError, DataError
from rag.core.progress import Progress
from rag.core.types import AnswerSet, Question
from rag.data.text import AnswerMatcher, exact_match
from rag.eval.settings import EvaluationSettings
from rag.eval.systems import AnswersQuestions
from rag.metrics.calibration import measure_calibration
from readers.calibration import fit_shift
from readers.manifest import Calibration

_FOLDS = 5
_LEAST = 10
_NEVER = (-20.0, 20.0)  # logits of confidences of 0 and 1
Fit = tuple[tuple[float, float], tuple[float, float]]  # shift and slope of the logits of both confidences
_AS_IT_IS: Fit = (0.0, 1.0), (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class ConfidenceFigures:
    """How reliable the confidence is.

    Attributes:
        ece: expected calibration error of the first answer's confidence.
        hidden: share of the right first answers over which "no answer" is presented.
        refused: share of the questions without an answer for which "no answer" is presented.
    """

    ece: float
    hidden: float
    refused: float


@dataclass(frozen=True, slots=True)
class ConfidenceTuning:
    """Outcome of `tune_confidence`.

    Attributes:
        calibration: the reader's calibration, fitted to the corpus.
        n, unanswerable: number of questions, and of those without an answer in what was retrieved.
        before: figures of the reader as it is.
        after: figures of each fifth of the questions with the confidence fitted on the others.
    """

    calibration: Calibration
    n: int
    unanswerable: int
    before: ConfidenceFigures
    after: ConfidenceFigures


def tune_confidence(
    system: AnswersQuestions, questions: Sequence[Question], old: Calibration, settings: EvaluationSettings
) -> ConfidenceTuning:
    """Ask every question and fit a shift and a slope to the logits of both confidences.

    Without any question that the corpus does not answer, the probability of "no answer" stays as it is.
    A question without answers, or whose passages hold none of them, is one that the corpus does not answer.

    Args:
        system: opened with the reader whose calibration is `old`.

    Raises:
        ConfigError: the reader's confidence was never fitted.
        DataError: there are fewer than 10 questions.
    """
    if old.right is None:
        raise ConfigError(
            "this reader's confidence was never fitted",
            hint="train it with held-out or `calibrate` questions",
        )
    if len(questions) < _LEAST:
        raise DataError(
            f"{len(questions)} questions, expected at least {_LEAST}",
            hint="about 50 give a useful fit, a fifth of them without an answer in the corpus",
        )
    logits, truth = _ask(system, questions, settings)
    fold = np.arange(len(questions)) % _FOLDS
    crossed = np.zeros(logits.shape)
    for held_out in range(_FOLDS):
        learnt = _fit(logits[fold != held_out], truth[fold != held_out])
        crossed[fold == held_out] = _confidences(logits[fold == held_out], learnt)
    (a, b), (c, d) = _fit(logits, truth)
    absent = None if old.absent is None else _shifted(old.absent, c, d)
    fitted = {"right": _shifted(old.right, a, b), "absent": absent, "questions": len(questions)}
    tuned = old.model_copy(update=fitted)
    before = _confidences(logits, _AS_IT_IS)
    return ConfidenceTuning(
        tuned, len(questions), int(truth[:, 1].sum()), _figures(before, truth), _figures(crossed, truth)
    )


def _ask(
    system: AnswersQuestions, questions: Sequence[Question], settings: EvaluationSettings
) -> tuple[Float64, Bool]:
    """Logits (Q, 2) that the first answer is right and that there is none; and what was the case."""
    logits, truth = [], []
    with Progress(len(questions), "questions", "ask") as progress:
        for begin in range(0, len(questions), settings.batch_size):
            part = questions[begin : begin + settings.batch_size]
            texts = [question.text for question in part]
            found, paths = system.retrieve_paths(texts, settings.read)
            read = system.read(texts, found, 1, paths)
            for question, hits, answers in zip(part, found, read, strict=True):
                matcher = AnswerMatcher(question.answers, question.answer_mode) if question.answers else None
                holds = matcher is not None and any(matcher.matches(passage.text) for _, passage in hits)
                logits.append(_logits(answers))
                truth.append((holds and _is_right(answers, question), not holds))
            progress.update(len(part))
    return np.array(logits, dtype=float), np.array(truth, dtype=bool)


def _is_right(answers: AnswerSet, question: Question) -> bool:
    shown = answers.answers[0].text if answers.answers else ""
    return exact_match(shown, question.answers, question.answer_profile)


def _logits(answers: AnswerSet) -> tuple[float, float]:
    """Logits of the first answer's confidence, and of "no answer"."""
    if not answers.answers:
        return _NEVER
    return tuple(
        np.clip(np.log(p / max(1.0 - p, 1e-9)) if p > 0 else _NEVER[0], *_NEVER)
        for p in (answers.answers[0].confidence, answers.no_answer_confidence)
    )


def _fit(logits: Float64, truth: Bool) -> Fit:
    none = fit_shift(logits[:, 1], truth[:, 1]) if truth[:, 1].any() else (0.0, 1.0)
    return fit_shift(logits[:, 0], truth[:, 0]), none


def _shifted(fitted: Sequence[float], shift: float, slope: float) -> tuple[float, ...]:
    bias, *slopes = (slope * value for value in fitted)
    return tuple(round(value, 4) for value in (bias + shift, *slopes))


def _confidences(logits: Float64, fit: Fit) -> Float64:
    """(Q, 2): of the first answer and of none."""
    shift, slope = np.array(fit).T
    return np.asarray(1.0 / (1.0 + np.exp(-(shift + slope * logits))), np.float64)


def _figures(confidences: Float64, truth: Bool) -> ConfidenceFigures:
    (first, none), (right, empty) = confidences.T, truth.T
    measured = measure_calibration(first, right)
    silent = none > 0.5
    return ConfidenceFigures(
        0.0 if measured is None else measured.ece,
        float(silent[right].mean()) if right.any() else 0.0,
        float(silent[empty].mean()) if empty.any() else 0.0,
    )
