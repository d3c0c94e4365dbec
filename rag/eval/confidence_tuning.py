"""Fit a reader's confidence to a corpus, from a few questions that people would ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from scipy.special import expit, logit

from rag.answering import AnswerOptions
from rag.core.arrays import Bool, Float64
from rag.core.errors import ConfigError, DataError
from rag.core.files import check_target
from rag.core.log import Progress
from rag.core.types import Question
from rag.data.questions import draw_sample, read_questions
from rag.data.text import AnswerMatcher, exact_match
from rag.eval.language_model_tuning import tune_language_model
from rag.eval.settings import EvaluationSettings
from rag.eval.source import check_selection_split
from rag.eval.systems import AnswersQuestions, System, system_of
from rag.metrics.calibration import measure_calibration
from rag.options import OpenOptions
from rag.pipeline import Pipeline
from readers.confidence import fit_shift
from readers.extractive.files import save_calibrated
from readers.extractive.reader import ExtractiveReader
from readers.llm.reader import LanguageModelReader
from readers.llm.tuned import save_tuned
from readers.manifest import Calibration

_FOLDS = 5
_MIN_QUESTIONS = 10
# The logit of a confidence of 1.
_MAX_LOGIT = 20.0


@dataclass(frozen=True, slots=True)
class ConfidenceTuning:
    """Outcome of `tune_confidence`.

    Attributes:
        calibration: the reader's calibration, fitted to the corpus; of a language model, the number
            of its answers alone.
        n, unanswerable: number of questions, and of those without an answer in what was retrieved.
        ece_before: expected calibration error of the first answer's confidence as it is.
        ece_after: the same of each fifth of the questions with the confidence fitted on the others.
    """

    calibration: Calibration
    n: int
    unanswerable: int
    ece_before: float
    ece_after: float


def tune_confidence(
    system: AnswersQuestions,
    questions: Sequence[Question],
    old: Calibration,
    settings: EvaluationSettings,
) -> ConfidenceTuning:
    """Ask every question and fit a shift and a slope to the logits of both confidences.

    Without any question that the corpus does not answer, the probability of "no answer" stays as it
    is. A question without answers, or whose passages hold none of them, is one that the corpus does
    not answer.

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
    logits, truth = _ask(system_of(system), questions, settings)
    first, none = logits.T
    right, empty = truth.T
    fold = np.arange(len(questions)) % _FOLDS
    crossed = np.zeros(len(questions))
    for held_out in range(_FOLDS):
        shift, slope = fit_shift(first[fold != held_out], right[fold != held_out])
        crossed[fold == held_out] = shift + slope * first[fold == held_out]
    fitted: dict[str, Any] = {"right": _shifted(old.right, *fit_shift(first, right))}
    if old.absent is not None and empty.any():
        fitted["absent"] = _shifted(old.absent, *fit_shift(none, empty))
    calibration = old.model_copy(update={**fitted, "questions": len(questions)})
    before, after = (measure_calibration(expit(values), right) for values in (first, crossed))
    assert before is not None  # there are questions
    assert after is not None
    return ConfidenceTuning(
        calibration, len(questions), int(empty.sum()), before["ece"], after["ece"]
    )


def draw_questions(questions: str, settings: EvaluationSettings) -> list[Question]:
    """The questions of a file that a tuning may ask.

    Feedback that marks an answer wrong without correcting it is left out: the corpus may still
    answer it.

    Raises:
        ConfigError: the questions are a test set.
    """
    check_selection_split(questions)
    drawn = list(islice(read_questions(questions), settings.limit))
    if settings.sample is not None:
        drawn = draw_sample(drawn, settings.sample, settings.seed)
    return [each for each in drawn if each.answers or each.meta.get("verdict") != "wrong"]


def fit_confidence(
    index: str | Path,
    questions: Sequence[Question],
    out: Path,
    *,
    settings: EvaluationSettings,
    **opening: Unpack[OpenOptions],
) -> ConfidenceTuning:
    """Fit the confidence of an extractive reader or of a language model to a corpus and write the
    reader with it into `out`.

    Raises:
        ConfigError: the reader is neither a folder of an extractive one nor a language model, or
            `out` is not for it.
        DataError: there are too few questions.
    """
    check_target(out, folder=True, is_new=True)
    reader = opening.get("reader")
    pipeline = Pipeline.open(index, **opening)
    if isinstance(pipeline.reader, LanguageModelReader):
        second = pipeline.reader.tuned(None, ExtractiveReader.load())
        found = tune_language_model(pipeline, second, questions, settings)
        save_tuned(str(reader), out, found.fitted, found.n)
        calibration = Calibration(questions=found.n)
        return ConfidenceTuning(
            calibration, found.n, found.unanswerable, found.ece_before, found.ece_after
        )
    is_folder = reader is None or isinstance(reader, str | Path)
    if not is_folder or not isinstance(pipeline.reader, ExtractiveReader):
        raise ConfigError(
            f"{reader} is a {type(pipeline.reader).__name__}, expected an extractive reader or a "
            "language model",
            hint="leave {reader} out, or give a folder of `rag train reader`, or openai:BASE_URL#MODEL",
            arguments=("reader",),
        )
    tuning = tune_confidence(pipeline, questions, pipeline.reader.calibration, settings)
    save_calibrated(str(reader) if reader else None, out, tuning.calibration)
    return tuning


def _ask(
    system: System, questions: Sequence[Question], settings: EvaluationSettings
) -> tuple[Float64, Bool]:
    """Logits (Q, 2) that the first answer is right and that there is none; and what was the
    case.
    """
    logits = list[Float64]()
    truth = list[tuple[bool, bool]]()
    options = AnswerOptions(top_k=settings.read, n_best=1)
    with Progress(len(questions), "questions", "ask") as progress:
        for begin in range(0, len(questions), settings.batch_size):
            part = questions[begin : begin + settings.batch_size]
            for question, outcome in zip(part, system.answer(part, options, []), strict=True):
                answers = outcome.short
                assert answers is not None, "the system has a reader"
                matcher = AnswerMatcher(question.answers, question.answer_profile)
                passages = [passage for _, passage in outcome.result.passages]
                holds = any(matcher.matches(passage.text) for passage in passages)
                text = ""
                chances = (0.0, 1.0)
                if answers.answers:
                    best = answers.answers[0]
                    text = best.text
                    chances = (best.confidence, answers.no_answer_confidence)
                is_right = exact_match(text, question.answers, question.answer_profile)
                logits.append(np.clip(logit(chances), -_MAX_LOGIT, _MAX_LOGIT))
                truth.append((holds and is_right, not holds))
            progress.update(len(part))
    return np.array(logits, dtype=float), np.array(truth, dtype=bool)


def _shifted(fitted: Sequence[float], shift: float, slope: float) -> tuple[float, ...]:
    bias, *slopes = (slope * value for value in fitted)
    return tuple(round(value, 4) for value in (bias + shift, *slopes))
