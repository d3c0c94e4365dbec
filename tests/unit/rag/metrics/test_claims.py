"""Figures of verdicts, beside FEVER's own scorer and scikit-learn."""

import random

import numpy as np
import pytest
from sklearn.metrics import f1_score

from rag.core.errors import DataError
from rag.metrics.claims import macro_f1, score_claim
from tests.support.messages import refusal

LABELS = ("supported", "refuted", "not_enough")
# Strict score, label accuracy, evidence precision and recall of `fever-scorer` (Thorne et al.) for
# the same made predictions.
OFFICIAL = (0.29, 0.505, 0.48069544364508393, 0.37410071942446044)


def made_predictions() -> list[tuple[str, str, list[list[tuple[str, int]]], list[tuple[str, int]]]]:
    """200 claims: label, predicted label, gold sets, and at most five predicted sentences."""
    rng = random.Random(5)
    sentences = [(title, number) for title in "ABC" for number in range(4)]
    made = []
    for _ in range(200):
        label = rng.choice(LABELS)
        predicted = rng.choice((label, *LABELS))
        sets: list[list[tuple[str, int]]] = []
        if label != "not_enough":
            sets = [rng.sample(sentences, rng.randint(1, 2)) for _ in range(rng.randint(1, 3))]
        known = [sentence for gold_set in sets for sentence in gold_set] + sentences
        found = list(dict.fromkeys(rng.choices(known, k=rng.randint(0, 5))))
        made.append((label, predicted, sets, found))
    return made


def test_figures_are_those_of_the_official_scorer() -> None:
    scores = [score_claim(*each) for each in made_predictions()]
    names = ("fever_score", "label_accuracy", "evidence_precision", "evidence_recall")
    means = [np.nanmean([score[name] for score in scores]) for name in names]
    assert means == pytest.approx(OFFICIAL, abs=1e-9)


def test_macro_f1_is_that_of_scikit_learn() -> None:
    made = made_predictions()
    labels = [each[0] for each in made]
    predicted = [each[1] for each in made]
    figure = macro_f1(labels, predicted)
    assert figure.value == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert figure.low < figure.value < figure.high
    assert figure.n == 200
    # A label that none of the claims has is no class, but predicting it is wrong.
    assert macro_f1(["a", "b"], ["a", "not_judged"]).value == 0.5
    with refusal(DataError):
        macro_f1([], [])
