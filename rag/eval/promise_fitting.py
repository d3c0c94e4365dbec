"""Fit a promise about wrong answers to an index, from questions that people would ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, Unpack

import numpy as np

from rag.answering import AnswerOptions
from rag.core.arrays import Float64
from rag.core.log import in_batches
from rag.core.manifest import PROMISE_NAME, VERDICT_PROMISE_NAME
from rag.core.types import Claim, Promise, Question
from rag.data.text import exact_match
from rag.eval.settings import EvaluationSettings
from rag.eval.systems import System, ask_all, system_of
from rag.metrics.selective import Limits, fit_threshold
from rag.options import OpenOptions
from rag.pipeline import Pipeline
from rag.promises import StoredPromise

Item = TypeVar("Item")
# Share of the questions that fit the confidence; the others choose the threshold.
_FITTING_SHARE = 0.25
# Claims judged as one batch.
_CLAIMS = 64
# Labels of sets with two labels, and the verdicts that are right.
_ACCEPTED = {"not_supported": ("refuted", "not_enough")}


def split_questions(questions: Sequence[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """Questions that fit the confidence, and others that choose the threshold, at random."""
    order = np.random.default_rng(seed).permutation(len(questions))
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
    rows = list[tuple[float, bool, bool]]()
    options = AnswerOptions(top_k=settings.read)
    for question, outcome in ask_all(system, questions, options, settings.batch_size):
        presented = outcome.presented
        if presented is None or presented.kind != "answer":
            continue
        is_right = exact_match(presented.text, question.answers, question.answer_profile)
        rows.append((presented.confidence, not is_right, not question.answers))
    return np.array(rows, np.float64).reshape(-1, 3).T


def is_wrong_verdict(verdict: str, label: str | None) -> bool:
    """Whether a verdict is another than the label of its claim, which may join two labels.

    Example:
        >>> is_wrong_verdict("not_enough", "not_supported"), is_wrong_verdict("not_enough", "refuted")
        (False, True)
    """
    return verdict not in _ACCEPTED.get(label or "", (label,))


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
        stored = StoredPromise.of(promise, confidences, conditions)
        stored.write(pipeline.index.directory / PROMISE_NAME)
    return promise


def fit_verdict_promise(
    index: str | Path,
    claims: Sequence[Claim],
    limits: Limits,
    *,
    top_k: int,
    **opening: Unpack[OpenOptions],
) -> Promise:
    """The same for verdicts on claims, which are judged as people have them judged; see `fit_promise`.

    Claims without a label, and those that are not judged, are left out.
    """
    labelled = [claim for claim in claims if claim.label is not None]
    rows = list[tuple[float, bool]]()
    with Pipeline.open(index, reads=False, **opening) as pipeline:
        plain = pipeline.without_promises()
        for part in in_batches(labelled, _CLAIMS, "claims", "verify"):
            verdicts = plain.verify([claim.text for claim in part], top_k)
            for claim, verdict in zip(part, verdicts, strict=True):
                if verdict.label != "not_judged":
                    is_wrong = is_wrong_verdict(verdict.label, claim.label)
                    rows.append((verdict.confidence, is_wrong))
        confidences, wrong = np.array(rows, np.float64).reshape(-1, 2).T
        promise = fit_threshold(confidences, wrong, limits, given="verdicts")
        stored = StoredPromise.of(promise, confidences, pipeline.verdict_conditions(top_k))
        stored.write(pipeline.index.directory / VERDICT_PROMISE_NAME)
    return promise
