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
from readers.confidence import chance_of_none
from readers.manifest import Calibration

_FOLDS = 5
_LEAST = 10
_NEVER = (-20.0, 20.0)  # logits of confidences of 0 and 1


@dataclass(frozen=True, slots=True)
class ConfidenceFigures:
    """How reliable the confidence is.

    Attributes:
        ece: expected calibration error of the first answer's confidence.
        hidden: share of the right first answers that are less likely than "no answer".
        refused: share of the questions without an answer for which "no answer" is likelier than any.
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


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """Q questions: logits that the first answer is right, and that there is none; what was.

    `if_wrong`: whether the second is fitted where the first answer is wrong, as `Calibration.none` is.
    """

    first: Float64
    none: Float64
    right: Bool
    empty: Bool
    if_wrong: bool

    def only(self, kept: Bool) -> _Outcomes:
        arrays = self.first[kept], self.none[kept], self.right[kept], self.empty[kept]
        return _Outcomes(*arrays, self.if_wrong)


def tune_confidence(
    system: AnswersQuestions, questions: Sequence[Question], old: Calibration, settings: EvaluationSettings
) -> ConfidenceTuning:
    """Ask every question and fit a shift and a slope to the logits of both confidences.

    Without any question that the corpus does not answer, the probability of "no answer" stays as it is.
    A question without answers, or whose passages hold none of them, is one that the corpus does not answer.
    Feedback that marks an answer wrong without correcting it is left out: the corpus may still answer it.

    Args:
        system: opened with the reader whose calibration is `old`.

    Raises:
        ConfigError: the reader's confidence was never fitted.
        DataError: there are fewer than 10 questions.
    """
    if old.first is None:
        raise ConfigError(
            "this reader's confidence was never fitted",
            hint="train it with held-out or `calibrate` questions",
        )
    questions = [one for one in questions if one.answers or one.meta.get("verdict") != "wrong"]
    if len(questions) < _LEAST:
        raise DataError(
            f"{len(questions)} questions, expected at least {_LEAST}",
            hint="about 50 give a useful fit, a fifth of them without an answer in the corpus",
        )
    outcomes = _ask(system, questions, settings, if_wrong=old.empty is None)
    fold = np.arange(len(questions)) % _FOLDS
    crossed = np.zeros((len(questions), 2))
    for held_out in range(_FOLDS):
        learnt = _fit(outcomes.only(fold != held_out))
        crossed[fold == held_out] = _confidences(outcomes.only(fold == held_out), learnt)
    (a, b), (c, d) = _fit(outcomes)
    fitted = {"first": _shifted(old.first, a, b)}
    if (slopes := old.none if old.empty is None else old.empty) is not None:
        fitted["none" if old.empty is None else "empty"] = _shifted(slopes, c, d)
    tuned = old.model_copy(update={**fitted, "questions": len(questions)})
    return ConfidenceTuning(
        tuned, len(questions), int(outcomes.empty.sum()),
        _figures(_confidences(outcomes, ((0.0, 1.0), (0.0, 1.0))), outcomes), _figures(crossed, outcomes),
    )  # fmt: skip


def _ask(
    system: AnswersQuestions, questions: Sequence[Question], settings: EvaluationSettings, *, if_wrong: bool
) -> _Outcomes:
    rows = []
    with Progress(len(questions), "questions", "ask") as progress:
        for begin in range(0, len(questions), settings.batch_size):
            part = questions[begin : begin + settings.batch_size]
            texts = [question.text for question in part]
            found, paths = system.retrieve_paths(texts, settings.read)
            read = system.read(texts, found, 1, paths)
            for question, hits, answers in zip(part, found, read, strict=True):
                matcher = AnswerMatcher(question.answers, question.answer_mode) if question.answers else None
                holds = matcher is not None and any(matcher.matches(passage.text) for _, passage in hits)
                rows.append((*_logits(answers), holds and _is_right(answers, question), not holds))
            progress.update(len(part))
    first, none, right, empty = (np.array(column) for column in zip(*rows, strict=True))
    arrays = first.astype(float), none.astype(float), right.astype(bool), empty.astype(bool)
    return _Outcomes(*arrays, if_wrong)


def _is_right(answers: AnswerSet, question: Question) -> bool:
    shown = answers.answers[0].text if answers.answers else ""
    return exact_match(shown, question.answers, question.answer_profile)


def _logits(answers: AnswerSet) -> tuple[float, float]:
    """Logits of the first answer's confidence, and of "no answer" if the first answer is wrong."""
    if not answers.answers:
        return _NEVER
    first = answers.answers[0].confidence
    nothing = answers.no_answer_confidence / max(1.0 - first, 1e-9)
    return tuple(
        np.clip(np.log(p / max(1.0 - p, 1e-9)) if p > 0 else _NEVER[0], *_NEVER) for p in (first, nothing)
    )


def _fit(outcomes: _Outcomes) -> tuple[tuple[float, float], tuple[float, float]]:
    some = ~outcomes.right if outcomes.if_wrong else np.ones(len(outcomes.right), bool)
    none = fit_shift(outcomes.none[some], outcomes.empty[some]) if outcomes.empty.any() else (0.0, 1.0)
    return fit_shift(outcomes.first, outcomes.right), none


def _shifted(fitted: Sequence[float], shift: float, slope: float) -> tuple[float, ...]:
    bias, *slopes = (slope * value for value in fitted)
    return tuple(round(value, 4) for value in (bias + shift, *slopes))


def _confidences(outcomes: _Outcomes, fitted: tuple[tuple[float, float], tuple[float, float]]) -> Float64:
    """(Q, 2): of the first answer and of none."""
    (a, b), (c, d) = fitted
    first, none = (1.0 / (1.0 + np.exp(-z)) for z in (a + b * outcomes.first, c + d * outcomes.none))
    nothing = (1.0 - first) * none if outcomes.if_wrong else chance_of_none(first, none)
    return np.column_stack([first, nothing])


def _figures(confidences: Float64, outcomes: _Outcomes) -> ConfidenceFigures:
    first, none = confidences.T
    measured = measure_calibration(first, outcomes.right)
    silent = none > first
    return ConfidenceFigures(
        0.0 if measured is None else measured.ece,
        float(silent[outcomes.right].mean()) if outcomes.right.any() else 0.0,
        float(silent[outcomes.empty].mean()) if outcomes.empty.any() else 0.0,
    )
