"""Fit a reader's confidence to a corpus, from a few questions that people would ask of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, Unpack

import numpy as np
from scipy.special import expit, logit

from rag.answering import AnswerOptions
from rag.core.arrays import Bool, Float64
from rag.core.errors import ConfigError, DataError, EndpointError, ReaderError
from rag.core.files import check_target
from rag.core.log import get_logger, in_batches
from rag.core.types import Passage, Question
from rag.data.questions import read_questions
from rag.data.text import AnswerMatcher, exact_match
from rag.eval.settings import EvaluationSettings
from rag.eval.source import check_selection_split
from rag.eval.systems import AnswersQuestions, ask_all, system_of
from rag.metrics.calibration import measure_calibration
from rag.metrics.selective import TradeOff, measure_trade_offs
from rag.options import OpenOptions
from rag.pipeline import Pipeline
from readers.confidence import chance, fit_chance, fit_shift
from readers.extractive.files import save_calibrated
from readers.extractive.reader import ExtractiveReader
from readers.llm.reader import LanguageModelReader
from readers.llm.tuned import save_tuned
from readers.manifest import Calibration
from readers.protocols import ReadRequest

log = get_logger(__name__)
Fitted = TypeVar("Fitted", Calibration, tuple[float, ...])
_FOLDS = 5
_MIN_QUESTIONS = 10
_MIN_ANSWERS = 30
# The logit of a confidence of 1.
_MAX_LOGIT = 20.0


@dataclass(frozen=True, slots=True)
class ConfidenceTuning(Generic[Fitted]):
    """A confidence that was fitted to a corpus.

    Attributes:
        fitted: the calibration of an extractive reader; of a language model, bias and slopes of
            `readers.llm.confidence.Signs.features`.
        n, unanswerable: number of questions, or of a language model's answers, and of those whose
            retrieved passages hold no accepted answer.
        ece_before: expected calibration error of the first answer's confidence as it is.
        ece_after: the same error, where the confidence of each fifth of the questions was fitted on
            the others.
        curve: what comes of giving only surer answers, by the confidences of `ece_after`.
    """

    fitted: Fitted
    n: int
    unanswerable: int
    ece_before: float
    ece_after: float
    curve: Sequence[TradeOff]


def tune_confidence(
    system: AnswersQuestions,
    questions: Sequence[Question],
    old: Calibration,
    settings: EvaluationSettings,
) -> ConfidenceTuning[Calibration]:
    """Ask every question and fit a shift and a slope to the logits of both confidences.

    Without any question that the corpus does not answer, the probability of "no answer" stays as it
    is. The corpus does not answer a question without accepted answers, or whose passages hold none
    of these.

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
    if len(questions) < _MIN_QUESTIONS:
        raise DataError(
            f"{len(questions)} questions, expected at least {_MIN_QUESTIONS}",
            hint="about 50 give a useful fit, a fifth of them without an answer in the corpus",
        )
    chances = list[tuple[float, float]]()
    truth = list[tuple[bool, bool]]()
    options = AnswerOptions(top_k=settings.read, n_best=1)
    for question, outcome in ask_all(system_of(system), questions, options, settings.batch_size):
        answers = outcome.short
        assert answers is not None, "the system has a reader"
        holds = _is_answerable(question, [passage for _, passage in outcome.result.passages])
        is_right = exact_match(answers.text, question.answers, question.answer_profile)
        chances.append((answers.confidence, answers.no_answer_confidence))
        truth.append((holds and is_right, not holds))
    first, none = np.clip(logit(np.array(chances)), -_MAX_LOGIT, _MAX_LOGIT).T
    right, empty = np.array(truth, dtype=bool).T

    def fit(rows: Bool, others: Bool) -> Float64:
        shift, slope = fit_shift(first[rows], right[rows])
        return expit(shift + slope * first[others])

    changes = {"questions": len(questions), "right": _shifted(old.right, first, right)}
    if old.absent is not None and empty.any():
        changes["absent"] = _shifted(old.absent, none, empty)
    fitted = old.model_copy(update=changes)
    return _judged(fitted, expit(first), right, empty, fit)


def tune_language_model(
    system: AnswersQuestions,
    reader: LanguageModelReader,
    questions: Sequence[Question],
    settings: EvaluationSettings,
) -> ConfidenceTuning[tuple[float, ...]]:
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
    signs = list[Float64]()
    confidences = list[float]()
    outcomes = list[tuple[bool, bool]]()
    failures = list[ReaderError]()
    size = reader.max_concurrent or settings.batch_size
    for batch in in_batches(questions, size, "questions", "ask"):
        results = system.search([question.text for question in batch], settings.read)
        requests = [ReadRequest(result.query, result.passages) for result in results]
        readings = reader.readings(requests)
        for question, request, reading in zip(batch, requests, readings, strict=True):
            if isinstance(reading, EndpointError):
                raise reading
            if isinstance(reading, ReaderError):
                failures.append(reading)
            elif reading.signs is not None:
                text = reading.answers.text
                signs.append(reading.signs.features)
                confidences.append(reading.answers.confidence)
                is_right = _matcher(question).matches(text)
                if reader.settings.style == "short":
                    is_right = exact_match(text, question.answers, question.answer_profile)
                outcomes.append((is_right, _is_answerable(question, request.passages)))
    if failures:
        log.warning(
            "%d questions could not be read and are left out: %s",
            len(failures),
            failures[0].message,
        )
    right, is_answerable = np.array(outcomes, dtype=bool).reshape(-1, 2).T
    if len(right) < _MIN_ANSWERS or right.all() or not right.any():
        raise DataError(
            f"{len(right)} answers, {right.sum()} of them right; expected at least "
            f"{_MIN_ANSWERS}, and some of both kinds",
            hint="give more questions, some of them without an answer in the corpus",
        )
    features = np.array(signs)

    def fit(rows: Bool, others: Bool) -> Float64:
        fitted = _fit_signs(features[rows], right[rows])
        return np.array([chance(fitted, row) for row in features[others]])

    fitted = _fit_signs(features, right)
    return _judged(fitted, np.array(confidences), right, ~is_answerable, fit)


def _fit_signs(features: Float64, right: Bool) -> tuple[float, ...]:
    return fit_chance(features, right, np.ones(len(right)))


def _judged(
    fitted: Fitted,
    confidences: Float64,
    right: Bool,
    empty: Bool,
    fit: Callable[[Bool, Bool], Float64],
) -> ConfidenceTuning[Fitted]:
    """What a fit to all questions is worth, by fits to four fifths for the remaining fifth.

    Args:
        confidences: (n,) as they were.
        empty: (n,) questions that the corpus does not answer.
        fit: rows (n,) to be fitted to, and other rows (n,) → the confidences of these.
    """
    fold = np.arange(len(right)) % _FOLDS
    crossed = np.zeros(len(right))
    for held_out in range(_FOLDS):
        crossed[fold == held_out] = fit(fold != held_out, fold == held_out)
    before = measure_calibration(confidences, right)
    after = measure_calibration(crossed, right)
    assert before, "there are questions"
    assert after
    curve = measure_trade_offs(crossed, right, empty)
    return ConfidenceTuning(
        fitted, len(right), int(empty.sum()), before["ece"], after["ece"], curve
    )


def _matcher(question: Question) -> AnswerMatcher:
    return AnswerMatcher(question.answers, question.answer_profile)


def _is_answerable(question: Question, passages: Sequence[Passage]) -> bool:
    """Whether a passage holds an accepted answer."""
    matcher = _matcher(question)
    return any(matcher.matches(passage.text) for passage in passages)


def _shifted(fitted: Sequence[float], logits: Float64, happened: Bool) -> tuple[float, ...]:
    """Bias and slopes with the shift and the slope that fit the logits to what happened."""
    shift, slope = fit_shift(logits, happened)
    bias, *slopes = (slope * value for value in fitted)
    return tuple(round(value, 4) for value in (bias + shift, *slopes))


def draw_questions(questions: str, settings: EvaluationSettings) -> list[Question]:
    """The questions of a file that a tuning may ask.

    Feedback that marks an answer wrong without correcting it is left out: the corpus may still
    answer it.

    Raises:
        ConfigError: the questions are a test set.
    """
    check_selection_split(questions)
    return [
        question
        for question in settings.draw(read_questions(questions))
        if question.answers or question.meta.get("verdict") != "wrong"
    ]


def fit_confidence(
    index: str | Path,
    questions: Sequence[Question],
    out: Path,
    *,
    settings: EvaluationSettings,
    **opening: Unpack[OpenOptions],
) -> ConfidenceTuning[Calibration] | ConfidenceTuning[tuple[float, ...]]:
    """Fit the confidence of an extractive reader or of a language model to a corpus and write the
    reader with it into `out`.

    Raises:
        ConfigError: the reader is neither a folder of an extractive one nor a language model, or
            `out` is not for it.
        DataError: there are too few questions.
    """
    check_target(out, folder=True, is_new=True)
    reader = opening.get("reader")
    with Pipeline.open(index, **opening) as pipeline:
        if isinstance(pipeline.reader, LanguageModelReader):
            second = pipeline.reader.tuned(None, ExtractiveReader.load())
            found = tune_language_model(pipeline, second, questions, settings)
            save_tuned(str(reader), out, found.fitted, found.n)
            return found
        is_named = isinstance(reader, str | Path | None)
        if not is_named or not isinstance(pipeline.reader, ExtractiveReader):
            raise ConfigError(
                f"{reader} is a {type(pipeline.reader).__name__}, expected an extractive reader or "
                "a language model",
                hint="leave {reader} out, or give a folder of `rag train reader`, or "
                "openai:BASE_URL#MODEL",
                arguments=("reader",),
            )
        tuning = tune_confidence(pipeline, questions, pipeline.reader.calibration, settings)
        save_calibrated(str(reader) if reader else None, out, tuning.fitted)
        return tuning
