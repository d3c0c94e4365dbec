"""Choices on held-out questions: what is fitted is not measured on the same questions."""

from dataclasses import replace

import numpy as np
import pytest

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import Candidate, Example
from readers.confidence import likelihoods
from readers.extractive.training.calibrate import Case, fit_and_measure, with_empty_share
from readers.protocols import ReadAnswer
from readers.ranking import Ranked


def _case(number: int, right: bool, label: str = "", weight: float = 1.0) -> Case:
    said = ReadAnswer("Oslo" if right else "Rome", 1.0, 0.0, 0, 0, 4)
    found = Candidate(Passage("1", "", "Oslo Rome"), "retrieved", score=1.0, has_answer=True)
    example = Example(str(number), f"question {number}", ("Oslo",), (found,))
    return Case(Ranked([said], 0.0), example, number, label, weight)


def test_calibration_error_is_measured_on_questions_that_were_not_fitted() -> None:
    """One half is always right and the other always wrong, with the same scores: a fit on all of them says
    0.5 and looks perfect, though what one half teaches is false on the other."""
    cases = [_case(number, number % 2 == 0) for number in range(40)]
    _, calibration, figures = fit_and_measure(cases, 5)
    assert calibration.questions == 40
    assert figures["ece"] > 0.9
    alike = [_case(number, number % 4 < 2) for number in range(40)]
    assert fit_and_measure(alike, 5)[2]["ece"] < 0.05


def test_sets_count_by_their_weights_and_are_measured_each() -> None:
    """Right in one set, wrong in another ten times as large: equal weights make the confidence ½ for both."""
    cases = [_case(n, n % 44 < 4, *(("small", 10.0) if n % 44 < 4 else ("large", 1.0))) for n in range(440)]
    _, _, figures = fit_and_measure(cases, 5)
    assert figures["ece small"] == pytest.approx(0.5, abs=0.05)
    assert figures["ece large"] == pytest.approx(0.5, abs=0.05)


def test_a_set_that_was_not_fitted_is_measured_with_a_fit_on_the_others() -> None:
    """Two sets are always right and a third never: unseen, it gets the confidence that the two taught."""
    cases = [_case(n, n % 3 < 2, ("one", "two", "odd")[n % 3]) for n in range(90)]
    _, _, figures = fit_and_measure(cases, 5)
    assert figures["ece unseen odd"] > 0.95
    assert figures["ece odd"] < 0.75
    assert figures["ece unseen"] == pytest.approx(
        np.mean([figures[f"ece unseen {label}"] for label in ("one", "two", "odd")]), abs=1e-4
    )


def test_no_answer_means_that_what_was_read_holds_none() -> None:
    """A wrong first answer alone is none: of those that are wrong, three in four stand beside a right one."""
    cases = [_case(number, number % 4 < 2) for number in range(400)]
    cases = [replace(case, holds=number % 16 not in (2, 3)) for number, case in enumerate(cases)]
    _, calibration, figures = fit_and_measure(cases, 5)
    p, none = likelihoods(cases[0].found, calibration)
    assert p[0] == pytest.approx(0.5, abs=0.02)
    assert none == pytest.approx(0.5 * 0.33, abs=0.02)  # as if a third of the questions had no answer
    assert figures["no_answer_false_alarms"] == 0.0


def test_no_answer_is_said_where_held_out_questions_all_have_one() -> None:
    """What was emptied scores high for none, and is not unlearnt from sets in which nothing ever is empty."""
    draw = np.random.default_rng(0)
    cases = []
    for number in range(400):
        right = bool(draw.random() < 0.6)
        case = _case(number, right)
        cases.append(
            replace(case, found=replace(case.found, null=float(draw.normal(-4.0 if right else 0.0))))
        )
        if number % 8 in (0, 5):
            emptied = replace(_case(number, False), answerable=False, holds=False)
            cases.append(replace(emptied, found=replace(emptied.found, null=float(draw.normal(6.0)))))
    _, calibration, figures = fit_and_measure(cases, 5)
    assert figures["no_answer_recall"] > 80
    assert figures["no_answer_false_alarms"] < 5
    assert calibration.none is None


def test_a_reader_that_never_says_no_answer_is_sure_of_some() -> None:
    draw = np.random.default_rng(1)
    cases = []
    for number in range(300):
        case = _case(number, bool(draw.random() < 0.6))
        others = [replace(case.found.answers[0], text=f"Rome {n}", score=0.0) for n in range(4)]
        first = replace(case.found.answers[0], score=4.0)
        cases.append(replace(case, found=replace(case.found, answers=[first, *others], null=None)))
    _, calibration, _ = fit_and_measure(cases, 5)
    assert calibration.temperature < 20
    p, none = likelihoods(cases[0].found, calibration)
    assert p[0] > 0.5
    assert none == 0.0


def test_every_set_holds_no_answer_as_often() -> None:
    """One set lacks three answers in four, one a tenth: as many in the fit. One that lacks none is let be."""
    shares = {"poor": (3, 4), "rich": (1, 10), "full": (0, 10)}
    cases = [
        replace(_case(n, True, label, 2.0), holds=n % of >= empty)
        for label, (empty, of) in shares.items()
        for n in range(40)
    ]
    weighted = with_empty_share(cases)
    for label, expected in (("poor", 0.2), ("rich", 0.2), ("full", 0.0)):
        mine = [case for case in weighted if case.label == label]
        assert sum(case.weight for case in mine) == pytest.approx(80.0)
        assert sum(case.weight for case in mine if not case.holds) == pytest.approx(80.0 * expected)
    assert [replace(case, weight=2.0) for case in weighted] == cases


def test_a_confidence_holds_after_the_first_passages_too() -> None:
    """Right where two passages were read, wrong where nine were, all else being equal."""
    whole = [_case(number, False) for number in range(60)]
    less = [replace(_case(number, True), whole=False) for number in range(60)]
    cases = [
        *(replace(c, found=replace(c.found, passages=9)) for c in whole),
        *(replace(c, found=replace(c.found, passages=2)) for c in less),
    ]
    _, calibration, figures = fit_and_measure(cases, 5)
    assert likelihoods(cases[-1].found, calibration)[0][0] > 0.8
    assert likelihoods(cases[0].found, calibration)[0][0] < 0.2
    assert figures["questions"] == 60


def test_one_question_cannot_be_fitted_and_measured() -> None:
    with pytest.raises(DataError, match="fewer than two"):
        fit_and_measure([_case(0, True)], 5)
