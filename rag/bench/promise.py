"""Promised error rates: how often they hold on untouched questions, within a set and on others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import itemgetter

import numpy as np
from scipy.special import expit, logit

from rag.bench.report import Figure, Report
from rag.core.arrays import Bool, Float64
from rag.core.errors import ConfigError, DataError
from rag.data.text import Profile, exact_match
from rag.eval.promise_fitting import is_wrong_verdict, split_questions
from rag.eval.records import QuestionRecord
from rag.eval.results import Evaluation, load_evaluations
from rag.metrics.selective import Limits, fit_threshold
from rag.metrics.significance import Interval
from readers.confidence import fit_shift

# A confidence is no surer than this, so that its logit is finite.
_LEAST = 1e-9
# The least logit of the answers that a threshold gives; above all of them where it gives none.
_NEVER = float("inf")
# Of the test by which untouched answers refute a rate.
_LEVEL = 0.05
# Questions of each set that stay untouched at least.
_LEAST_REST = 500
# Confidence; whether it is wrong; whether the question has no answer.
_Row = tuple[float, bool, bool]


def run_promise_benchmark(
    results: Sequence[str],
    max_error: Sequence[str] = ("0.1", "0.3", "0.5"),
    max_false_answers: float | None = None,
    splits: int = 200,
    fitted: int = 500,
    replacement: bool = False,
) -> Report:
    """How often a promised error rate holds on the questions, or claims, that it was not fitted on.

    Each set is split at random many times: some questions fit the confidence and choose the
    threshold as `rag tune confidence` does, or claims the threshold as `rag tune verdicts` does, and
    the rate of wrong answers is taken on all others. "Plain" is the least threshold whose rate on
    the fitted questions is low enough. Where no promise can be made nothing is answered, which
    keeps it; "made: kept" leaves that out. The first set's promises are also used on the others.

    Args:
        results: Result folders of `rag evaluate`, all of questions or all of claims.
        max_error: Error rates to promise.
        max_false_answers: Also promise that so few of the questions without an answer get one.
        splits: Random splits of each set.
        fitted: Questions to fit on at most; at least 500 stay untouched.
        replacement: Draw the fitted questions with replacement, and take the rate on the whole set:
            it is the true rate of what they are drawn from, not that of another sample.

    Raises:
        ConfigError: a set has too few questions, or questions stand beside claims.
    """
    evaluations = load_evaluations(results)
    are_claims = {evaluation.metrics.get("profile") == "claims" for evaluation in evaluations}
    if len(are_claims) > 1:
        raise ConfigError(
            "some results are of claims, others of questions", hint="measure each alone"
        )
    [is_claims] = are_claims
    sets = {evaluation.name: _read(evaluation) for evaluation in evaluations}
    report = Report(f"promised error rates, {splits} random splits of each set")
    first = next(iter(sets))
    for rate in max_error:
        limits = Limits(float(rate), max_false_answers=max_false_answers)
        for name, outcomes in sets.items():
            n = outcomes.shape[1]
            n_fitted = min(fitted, n - _LEAST_REST)
            if n_fitted < 1:
                raise ConfigError(f"{name} has {n} answers or verdicts, too few to split")
            draws = list(_draws(outcomes, n_fitted, splits, replacement))
            rests = [rest for _, rest in draws]
            rules = [_fit(part, limits, fits_confidence=not is_claims) for part, _ in draws]
            promised, plain = np.array(rules).T
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


def _draws(
    outcomes: Float64, n_fitted: int, splits: int, replacement: bool
) -> Iterator[tuple[Float64, Float64]]:
    """What is fitted on, and what the rate is taken on, for each split."""
    draw = np.random.default_rng(0)
    for _ in range(splits):
        if replacement:
            yield draw.choice(outcomes, n_fitted, axis=1), outcomes
        else:
            shuffled = draw.permutation(outcomes, axis=1)
            yield shuffled[:, :n_fitted], shuffled[:, n_fitted:]


def _figures(
    rules: Iterable[float], untouched: Iterable[Float64], limits: Limits
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
        "made: kept": _mean(is_kept[made]),
        "refuted": _mean(is_refuted),
        "made": _mean(made),
        "coverage": _mean(coverage),
        "wrong": _mean(risk[made]),
    }
    if limits.max_false_answers is not None:
        figures["false answers"] = _mean(false_share[made])
    return figures


def _mean(values: Float64 | Bool) -> float | None:
    return float(values.mean()) if len(values) else None


def _fit(outcomes: Float64, limits: Limits, *, fits_confidence: bool) -> tuple[float, float]:
    """The least logit that the promised threshold gives, and the plain one.

    Args:
        fits_confidence: by a quarter of the outcomes; the others choose the thresholds.
    """
    shift = 0.0
    slope = 1.0
    if fits_confidence:
        fitting, judged = split_questions(outcomes.T.tolist(), 0)
        logits, is_wrong, _ = np.array(fitting).T
        shift, slope = fit_shift(logits, is_wrong == 0)
        outcomes = np.array(judged).T
    logits, is_wrong, has_no_answer = outcomes
    confidence = expit(shift + slope * logits)
    promised = _NEVER
    with suppress(DataError):
        fitted = fit_threshold(confidence, is_wrong, limits, has_no_answer=has_no_answer)
        promised = float(logits[confidence >= fitted.threshold].min())
    order = np.argsort(-confidence, kind="stable")
    rate = np.cumsum(is_wrong[order]) / np.arange(1, len(order) + 1)
    is_low = np.flatnonzero(rate <= limits.max_error)
    plain = float(logits[order[is_low[-1]]]) if len(is_low) else _NEVER
    return promised, plain


def _outcome(least: float, outcomes: Float64) -> Float64:
    """Answers given from a least logit on, wrong ones among them, coverage, and the share of the
    questions without an answer that get one (4,).
    """
    logits, is_wrong, has_no_answer = outcomes
    is_given = logits >= least
    n_given = is_given.sum()
    n_false = has_no_answer[is_given].sum()
    false_share = n_false / max(1, has_no_answer.sum())
    return np.array([n_given, is_wrong[is_given].sum(), n_given / len(logits), false_share])


def _read(evaluation: Evaluation) -> Float64:
    """Logits of the confidences; 1 where the answer or verdict is wrong; 1 where the question has no
    answer (3, n).
    """
    profile = evaluation.metrics["profile"]
    row_of = _verdict_row if profile == "claims" else partial(_answer_row, profile=profile)
    rows = list(filter(None, map(row_of, evaluation.records())))
    outcomes = np.array(rows, np.float64).reshape(-1, 3).T
    outcomes[0] = logit(outcomes[0].clip(_LEAST, 1 - _LEAST))
    return outcomes


def _answer_row(record: QuestionRecord, profile: Profile) -> _Row | None:
    """The first answer, also where a scorer counts silence (SQuAD 2); None for lists, and for
    sentences in place of yes or no.
    """
    if record.kind != "answer":
        return None
    text = ""
    confidence = 0.0
    if record.n_best:
        text = record.n_best[0].text
        confidence = record.n_best[0].confidence
    is_right = exact_match(text, record.answers, profile)
    return confidence, not is_right, not record.answers


def _verdict_row(record: QuestionRecord) -> _Row | None:
    """The verdict as people get it, the likeliest of three labels; None where there is none, or no
    label to compare it with.
    """
    if not record.probabilities or not record.answers:
        return None
    verdict, confidence = max(record.probabilities.items(), key=itemgetter(1))
    return confidence, is_wrong_verdict(verdict, record.answers[0]), False
