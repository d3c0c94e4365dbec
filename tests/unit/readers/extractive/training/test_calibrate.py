"""Choices on held-out questions: what is fitted is not measured on the same questions."""

from dataclasses import replace

import numpy as np
import pytest

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import Candidate, Example
from readers.confidence import AnswerFeatures, Ranked, Span, likelihoods
from readers.extractive.training.calibrate import Case, fit_and_measure, weigh
from tests.support.messages import refusal


def _case(number: int, right: bool, label: str = "", **signs: float) -> Case:
    """`margin` is the second of `Ranked.features`."""
    answer = Span("Oslo" if right else "Rome", 1.0, 0, (0, 4))
    passage = Candidate(Passage("1", "", "Oslo Rome"), "retrieved", score=1.0, has_answer=True)
    example = Example(str(number), f"question {number}", ("Oslo",), (passage,))
    features = AnswerFeatures(margin=signs.get("margin", 0.0))
    return Case(Ranked([answer], 0.0, features), example, number, label)


def test_calibration_error_is_measured_on_questions_that_were_not_fitted() -> None:
    """One half is always right and the other always wrong, with the same scores: a fit on all of
    them says 0.5 and looks perfect, though what one half teaches is false on the other."""
    calibration, figures = fit_and_measure([_case(number, number % 2 == 0) for number in range(40)])
    assert calibration.questions == 40
    assert figures["ece"] > 0.9
    alike = [_case(number, number % 4 < 2) for number in range(40)]
    assert fit_and_measure(alike)[1]["ece"] < 0.05


def test_a_set_that_was_not_fitted_is_measured_with_a_fit_on_the_others() -> None:
    """Two sets are always right and a third never: unseen, it gets the confidence that the two
    taught.
    """
    cases = [_case(n, n % 3 < 2, ("first", "second", "odd")[n % 3]) for n in range(90)]
    assert fit_and_measure(cases)[1]["ece odd"] > 0.95
    empty = replace(
        cases[0], label="empty", emptied=True, holds=False
    )  # its set has no error to measure
    _, figures = fit_and_measure([*cases, empty])
    errors = [figures[f"ece {label}"] for label in ("first", "second", "odd")]
    assert figures["ece"] == pytest.approx(np.mean(errors), abs=1e-4)
    assert "ece empty" not in figures


def test_no_answer_is_said_where_passages_hold_none() -> None:
    """What was emptied has a low margin, and is not unlearnt from sets in which nothing ever is
    empty.
    """
    draw = np.random.default_rng(0)
    cases = []
    for number in range(400):
        right = bool(draw.random() < 0.6)
        cases.append(_case(number, right, margin=draw.normal(4.0 if right else 2.0)))
        if number % 8 in (0, 5):
            emptied = _case(number, False, margin=draw.normal(-4.0))
            cases.append(replace(emptied, emptied=True, holds=False))
    calibration, figures = fit_and_measure(cases)
    assert figures["no_answer_recall"] > 80
    assert figures["no_answer_false_alarms"] < 5
    p, none = likelihoods(cases[0].ranked, calibration)
    assert p[0] > none


def test_a_reader_that_never_says_no_answer_has_a_temperature_alone() -> None:
    draw = np.random.default_rng(1)
    cases = []
    for number in range(300):
        case = _case(number, bool(draw.random() < 0.6))
        others = [replace(case.ranked.answers[0], text=f"Rome {n}", score=0.0) for n in range(4)]
        first = replace(case.ranked.answers[0], score=4.0)
        cases.append(
            replace(case, ranked=replace(case.ranked, answers=[first, *others], null=None))
        )
    calibration, _ = fit_and_measure(cases)
    assert calibration.temperature < 20
    assert calibration.right is None
    p, none = likelihoods(cases[0].ranked, calibration)
    assert p[0] > 0.5
    assert none == 0.0


def test_every_set_holds_no_answer_as_often() -> None:
    """One set lacks three answers in four, one a tenth: as many in the fit. One that lacks none is
    let be.
    """
    shares = {"poor": (3, 4), "rich": (1, 10), "full": (0, 10)}
    cases = [
        replace(_case(n, True, label), holds=n % of >= empty)
        for label, (empty, of) in shares.items()
        for n in range(40)
    ]
    weights = weigh(cases, 0.2)
    for label, expected in (("poor", 0.2), ("rich", 0.2), ("full", 0.0)):
        mine = np.array([case.label == label for case in cases])
        assert weights[mine].sum() == pytest.approx(1.0)
        assert weights[mine & ~np.array([case.holds for case in cases])].sum() == pytest.approx(
            expected
        )


def test_a_single_question_cannot_be_fitted_and_measured() -> None:
    with refusal(DataError):
        fit_and_measure([_case(0, True)])
