"""Fit a promise about wrong answers to an index, from questions that people would ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, Unpack

import numpy as np

from rag.answering import AnswerOptions
from rag.core.arrays import Float64
from rag.core.errors import ReaderError
from rag.core.log import Progress
from rag.core.types import Promise, Question
from rag.data.text import exact_match
from rag.eval.settings import EvaluationSettings
from rag.eval.systems import System, system_of
from rag.metrics.selective import Limits, fit_threshold
from rag.options import OpenOptions
from rag.pipeline import Pipeline
from rag.promises import StoredPromise

Item = TypeVar("Item")
# Share of the questions that fit the confidence; the others choose the threshold.
_FITTING_SHARE = 0.25


def split_questions(questions: Sequence[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """Questions that fit the confidence, and others that choose the threshold, at random."""
    order = np.random.default_rng(seed).permutation(len(questions)).tolist()
    shuffled = [questions[number] for number in order]
    n_fitting = round(_FITTING_SHARE * len(questions))
    return shuffled[:n_fitting], shuffled[n_fitting:]


def judge_answers(
    system: System, questions: Sequence[Question], settings: EvaluationSettings
) -> Float64:
    """Ask every question as people do, and judge the first answer.

    Questions whose answer is a list or a sentence are left out: a promise does not cover them.

    Returns:
        (3, n): the confidence, 0 without an answer; 1 where the answer is none of the accepted
        ones, by SQuAD's normalisation; 1 where the question has no accepted answer.

    Raises:
        ReaderError: a question could not be read, so that nothing can be said of its answer.
    """
    options = AnswerOptions(top_k=settings.read)
    failures = list[ReaderError]()
    rows = list[tuple[float, bool, bool]]()
    with Progress(len(questions), "questions", "ask") as progress:
        for begin in range(0, len(questions), settings.batch_size):
            part = questions[begin : begin + settings.batch_size]
            outcomes = system.answer(part, options, failures)
            if failures:
                raise failures[0]
            for question, outcome in zip(part, outcomes, strict=True):
                shown = outcome.shown
                if shown is None or shown.kind != "answer":
                    continue
                text = ""
                confidence = 0.0
                if shown.answers:
                    text = shown.answers[0].text
                    confidence = shown.answers[0].confidence
                is_right = exact_match(text, question.answers, question.answer_profile)
                rows.append((confidence, not is_right, not question.answers))
            progress.update(len(part))
    return np.array(rows, np.float64).reshape(-1, 3).T


def fit_promise(
    index: str | Path,
    questions: Sequence[Question],
    limits: Limits,
    *,
    settings: EvaluationSettings,
    **opening: Unpack[OpenOptions],
) -> Promise:
    """Choose a threshold that keeps the limits, and store the promise beside the index.

    Args:
        questions: others than those that the reader's confidence was fitted on.

    Raises:
        DataError: the sample is too small, or no threshold keeps the limits.
    """
    with Pipeline.open(index, **opening) as pipeline:
        judged = judge_answers(system_of(pipeline), questions, settings)
        confidences, is_wrong, has_no_answer = judged
        promise = fit_threshold(confidences, is_wrong, limits, has_no_answer=has_no_answer)
        conditions = pipeline.conditions(AnswerOptions(top_k=settings.read))
        StoredPromise.of(promise, confidences, conditions).write(pipeline.index.directory)
    return promise
