"""Fit the confidence of a language model's answers, from questions that people would ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag.core.arrays import Bool, Float64
from rag.core.errors import DataError, EndpointError, ReaderError
from rag.core.log import Progress, get_logger
from rag.core.types import Passage, Question
from rag.data.text import AnswerMatcher, exact_match
from rag.eval.settings import EvaluationSettings
from rag.eval.systems import AnswersQuestions
from rag.metrics.calibration import measure_calibration
from readers.confidence import chance, fit_chance
from readers.llm.reader import LanguageModelReader, Reading
from readers.protocols import ReadRequest

log = get_logger(__name__)
_FOLDS = 5
_LEAST_ANSWERS = 30


@dataclass(frozen=True, slots=True)
class LanguageModelTuning:
    """Outcome of `tune_language_model`.

    Attributes:
        fitted: bias and slopes of `readers.llm.confidence.Signs.features`.
        n, unanswerable: number of answers, and of those to questions whose passages hold none.
        ece_before: expected calibration error of the confidence as it is.
        ece_after: the same of each fifth of the answers with the confidence fitted on the others.
    """

    fitted: tuple[float, ...]
    n: int
    unanswerable: int
    ece_before: float
    ece_after: float


@dataclass(frozen=True, slots=True)
class _Judged:
    features: Float64
    confidence: float
    is_right: bool
    is_answerable: bool


def tune_language_model(
    system: AnswersQuestions,
    reader: LanguageModelReader,
    questions: Sequence[Question],
    settings: EvaluationSettings,
) -> LanguageModelTuning:
    """Ask every question and fit a logistic regression to the signs of the answers.

    Questions that could not be read, or that the model did not answer, are left out. A short answer
    has to equal an accepted one, sentences have to contain one.

    Args:
        system: searches.
        reader: with a second reader, so that the agreement with it counts.

    Raises:
        EndpointError: the server of the model is gone.
        DataError: there are fewer than 30 answers, or all are right, or none.
    """
    judged = _ask(system, reader, questions, settings)
    right = np.array([each.is_right for each in judged], dtype=bool)
    if len(judged) < _LEAST_ANSWERS or right.all() or not right.any():
        raise DataError(
            f"{len(judged)} answers, {right.sum()} of them right; expected at least "
            f"{_LEAST_ANSWERS}, and some of both kinds",
            hint="give more questions, some of them without an answer in the corpus",
        )
    features = np.array([each.features for each in judged])
    fold = np.arange(len(judged)) % _FOLDS
    crossed = np.zeros(len(judged))
    for held_out in range(_FOLDS):
        fitted = _fit(features[fold != held_out], right[fold != held_out])
        crossed[fold == held_out] = [chance(fitted, row) for row in features[fold == held_out]]
    before = measure_calibration([each.confidence for each in judged], right)
    after = measure_calibration(crossed, right)
    assert before is not None  # there are answers
    assert after is not None
    unanswerable = sum(not each.is_answerable for each in judged)
    fitted = _fit(features, right)
    return LanguageModelTuning(fitted, len(judged), unanswerable, before["ece"], after["ece"])


def _fit(features: Float64, right: Bool) -> tuple[float, ...]:
    return fit_chance(features, right, np.ones(len(right)))


def _ask(
    system: AnswersQuestions,
    reader: LanguageModelReader,
    questions: Sequence[Question],
    settings: EvaluationSettings,
) -> list[_Judged]:
    judged = list[_Judged]()
    failures = list[ReaderError]()
    size = reader.max_concurrent or settings.batch_size
    with Progress(len(questions), "questions", "ask") as progress:
        for begin in range(0, len(questions), size):
            batch = questions[begin : begin + size]
            results = system.search([question.text for question in batch], settings.read)
            requests = [ReadRequest(result.query, result.passages) for result in results]
            readings = reader.readings(requests)
            for question, request, reading in zip(batch, requests, readings, strict=True):
                if isinstance(reading, EndpointError):
                    raise reading
                if isinstance(reading, ReaderError):
                    failures.append(reading)
                elif reading.signs is not None:
                    is_short = reader.settings.style == "short"
                    judged.append(_judge(question, request.passages, reading, is_short=is_short))
            progress.update(len(batch))
    if failures:
        log.warning(
            "%d questions could not be read and are left out: %s",
            len(failures),
            failures[0].message,
        )
    return judged


def _judge(
    question: Question, passages: Sequence[Passage], reading: Reading, *, is_short: bool
) -> _Judged:
    assert reading.signs is not None, "there is an answer"
    best = reading.answers.answers[0]
    matcher = AnswerMatcher(question.answers, question.answer_profile)
    if is_short:
        is_right = exact_match(best.text, question.answers, question.answer_profile)
    else:
        is_right = matcher.matches(best.text)
    is_answerable = any(matcher.matches(passage.text) for passage in passages)
    return _Judged(reading.signs.features, best.confidence, is_right, is_answerable)
