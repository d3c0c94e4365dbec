"""Figures of verdicts on claims: label accuracy and macro-F1, FEVER score, evidence."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from rag.core.arrays import Float64, Int64
from rag.core.errors import DataError
from rag.metrics.significance import RESAMPLES, Interval


def score_claim(
    label: str,
    predicted_label: str,
    gold_sets: Sequence[Sequence[Hashable]],
    sentences: Sequence[Hashable],
) -> dict[str, float]:
    """The figures of one claim, as FEVER's scorer has them.

    Args:
        gold_sets: sets of sentences, each of which suffices; empty where there is not enough.
        sentences: the predicted ones, each once; FEVER counts at most five.

    Returns:
        "label_accuracy"; "fever_score", 1 where the label is right and, unless there is not enough,
        a gold set is complete; "evidence_precision" and "evidence_recall" (1 where a gold set is
        complete), NaN without gold sets, and so is the FEVER score of such a claim that has enough.

    Example:
        >>> score_claim("refuted", "refuted", [["a", "b"], ["c"]], ["b", "c", "d"])
        {'label_accuracy': 1.0, 'fever_score': 1.0, 'evidence_precision': 0.666..., 'evidence_recall': 1.0}

    Source: Thorne et al., FEVER, NAACL 2018, section 4.3; its scorer.
    """
    accuracy = float(label == predicted_label)
    if not gold_sets:
        fever_score = accuracy if label == "not_enough" else math.nan
        return {
            "label_accuracy": accuracy,
            "fever_score": fever_score,
            "evidence_precision": math.nan,
            "evidence_recall": math.nan,
        }
    found = set(sentences)
    gold = {sentence for gold_set in gold_sets for sentence in gold_set}
    is_complete = any(found.issuperset(gold_set) for gold_set in gold_sets)
    return {
        "label_accuracy": accuracy,
        "fever_score": accuracy * is_complete,
        "evidence_precision": len(found & gold) / len(found) if found else 1.0,
        "evidence_recall": float(is_complete),
    }


def macro_f1(labels: Sequence[str], predicted: Sequence[str], *, seed: int = 0) -> Interval:
    """The mean F1 of the labels that occur among `labels`, with its percentile bootstrap interval.

    Args:
        predicted: one per label; another label than all of these is wrong.

    Example:
        >>> macro_f1(["a", "a", "b", "b"], ["a", "b", "b", "b"]).value
        0.733...
    """
    if len(labels) != len(predicted) or not labels:
        raise DataError(f"one prediction per label: found {len(labels)} and {len(predicted)}")
    names = sorted(set(labels))
    codes = {name: code for code, name in enumerate(names)}
    gold = np.array([codes[label] for label in labels])
    guessed = np.array([codes.get(label, len(names)) for label in predicted])
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(len(gold), size=len(gold))
        values.append(_mean_f1(gold[drawn], guessed[drawn], len(names)))
    low, high = np.nanpercentile(values, (2.5, 97.5))
    value = _mean_f1(gold, guessed, len(names))
    return Interval(value, float(low), float(high), len(gold))


def _mean_f1(gold: Int64, guessed: Int64, count: int) -> float:
    """The mean of 2 TP / (gold + guessed) over the labels that occur."""
    right: Float64 = np.bincount(gold[gold == guessed], minlength=count).astype(np.float64)
    n_gold = np.bincount(gold, minlength=count)
    n_guessed = np.bincount(guessed, minlength=count)[:count]
    occurs = n_gold > 0
    return float((2 * right[occurs] / (n_gold + n_guessed)[occurs]).mean())
