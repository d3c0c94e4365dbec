"""Promised error rates: how often they hold on untouched questions, within a set and on others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import repeat

import numpy as np
from scipy.special import expit, logit

from rag.bench.report import Figure, Report
from rag.core.arrays import Float64
from rag.core.errors import ConfigError, DataError
from rag.eval.promise_fitting import split_questions
from rag.eval.records import QuestionRecord
from rag.eval.results import load_evaluations
from rag.metrics.selective import Limits, fit_threshold
from rag.metrics.significance import Interval
from readers.confidence import fit_shift

# A confidence is no surer than this, so that its logit is finite.
_LEAST = 1e-9
# Fitted shift, slope and threshold; no answer reaches a threshold above 1.
_Rule = tuple[float, float, float]
_NEVER = 2.0
# Of the test by which untouched answers refute a rate.
_LEVEL = 0.05
# Questions that are fitted on at most, and those of each set that stay untouched at least.
_MOST_FITTED = 500
_LEAST_REST = 500


def run_promise_benchmark(
    results: Sequence[str],
    max_error: Sequence[str] = ("0.1", "0.3", "0.5"),
    max_false_answers: float | None = None,
    splits: int = 200,
) -> Report:
    """How often a promised error rate holds on the questions that it was not fitted on.

    Each set is split at random many times: some questions fit the confidence and choose the
    threshold as `rag tune confidence` does, and the rate of wrong answers is taken on all others.
    "Plain" is the least threshold whose rate on the fitted questions is low enough. Where no
    promise can be made nothing is answered, which keeps it. The promises of the first set are also
    used on the others.

    Args:
        results: Result folders of `rag evaluate`.
        max_error: Error rates to promise.
        max_false_answers: Also promise that so few of the questions without an answer get one.
        splits: Random splits of each set.

    Raises:
        ConfigError: a set has too few questions.
    """
    sets = {each.name: _read(each.records()) for each in load_evaluations(results)}
    report = Report(f"promised error rates, {splits} random splits of each set")
    first = next(iter(sets))
    for rate in max_error:
        limits = Limits(float(rate), max_false_answers=max_false_answers)
        for name, answers in sets.items():
            n_fitted = min(_MOST_FITTED, answers.shape[1] - _LEAST_REST)
            if n_fitted < 1:
                raise ConfigError(f"{name} has {answers.shape[1]} questions, too few to split")
            promised = list[_Rule]()
            plain = list[_Rule]()
            rests = list[Float64]()
            draw = np.random.default_rng(0)
            for _ in range(splits):
                order = draw.permutation(answers.shape[1])
                fitted = _fit(answers[:, order[:n_fitted]], limits)
                promised.append(fitted[0])
                plain.append(fitted[1])
                rests.append(answers[:, order[n_fitted:]])
            row = _figures(promised, rests, limits)
            for column, figure in _figures(plain, rests, limits).items():
                row[f"plain: {column}"] = figure
            row["fitted on"] = str(n_fitted)
            report.rows[f"{name}, {rate}"] = row
            others = {*sets} - {first} if name == first else ()
            for other in sorted(others):
                used = _figures(promised, repeat(sets[other]), limits)
                report.rows[f"{name} → {other}, {rate}"] = used
    return report


def _figures(
    rules: Sequence[_Rule], untouched: Iterable[Float64], limits: Limits
) -> dict[str, Figure]:
    """Of all splits: how often the limits were kept, with its exact interval; how often the
    untouched answers refute the error rate, by their own binomial test; and means.
    """
    from scipy.stats import binom, binomtest

    outcomes = list(map(_outcome, rules, untouched))
    n_given, n_wrong, coverage, false_share = np.array(outcomes).T
    risk = n_wrong / np.maximum(n_given, 1)
    is_kept = (risk <= limits.max_error) & (false_share <= (limits.max_false_answers or 1.0))
    is_refuted = binom.sf(n_wrong - 1, n_given, limits.max_error) < _LEVEL
    n_kept = int(is_kept.sum())
    n = len(outcomes)
    ends = binomtest(n_kept, n).proportion_ci(0.95, "exact")
    made = n_given > 0
    figures: dict[str, Figure] = {
        "kept": Interval(n_kept / n, float(ends.low), float(ends.high), n),
        "refuted": float(is_refuted.mean()),
        "made": float(made.mean()),
        "coverage": float(coverage.mean()),
        "wrong": float(risk[made].mean()) if made.any() else None,
    }
    if limits.max_false_answers is not None:
        figures["false answers"] = float(false_share[made].mean()) if made.any() else None
    return figures


def _fit(answers: Float64, limits: Limits) -> tuple[_Rule, _Rule]:
    """The promised and the plain threshold, on a confidence that a quarter of the answers fits."""
    fitting, judged = split_questions(answers.T.tolist(), 0)
    logits, is_wrong, _ = np.array(fitting).T
    shift, slope = fit_shift(logits, is_wrong == 0)
    logits, is_wrong, has_no_answer = np.array(judged).T
    confidence = expit(shift + slope * logits)
    promised = _NEVER
    with suppress(DataError):
        fitted = fit_threshold(confidence, is_wrong, limits, has_no_answer=has_no_answer)
        promised = fitted.threshold
    order = np.argsort(-confidence, kind="stable")
    rate = np.cumsum(is_wrong[order]) / np.arange(1, len(order) + 1)
    is_low = np.flatnonzero(rate <= limits.max_error)
    plain = float(confidence[order[is_low[-1]]]) if len(is_low) else _NEVER
    return (shift, slope, promised), (shift, slope, plain)


def _outcome(rule: _Rule, answers: Float64) -> tuple[float, float, float, float]:
    """Answers given, wrong ones among them, coverage, and the share of the questions without an
    answer that get one.
    """
    shift, slope, threshold = rule
    is_given = expit(shift + slope * answers[0]) >= threshold
    has_no_answer = answers[2] > 0
    n_false = (is_given & has_no_answer).sum()
    n_wrong = answers[1, is_given].sum()
    n_given = is_given.sum()
    return (
        float(n_given),
        float(n_wrong),
        float(n_given / len(is_given)),
        float(n_false / max(1, has_no_answer.sum())),
    )


def _read(records: Iterable[QuestionRecord]) -> Float64:
    """Logits of the first answers' confidences; 1 where they are wrong; 1 where the question has no
    answer (3, n). Lists and sentences for yes or no are left out.
    """
    rows = []
    for record in records:
        if record.kind != "answer":
            continue
        confidence = record.n_best[0].confidence if record.n_best else 0.0
        surest = float(logit(np.clip(confidence, _LEAST, 1 - _LEAST)))
        rows.append((surest, record.scores["em"] != 1.0, not record.answers))
    return np.array(rows, np.float64).T
