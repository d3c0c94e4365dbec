"""Choices on held-out questions: what is fitted is not measured on the same questions."""

from __future__ import annotations

import pytest

from rag.core.errors import DataError
from rag.core.types import Passage
from readers.extractive.ranking import Candidate, Ranked
from readers.extractive.settings import ReaderSettings
from readers.training.calibrate import HeldOut, _fit


def _pair(number: int, right: bool) -> tuple[Ranked, HeldOut]:
    said = Candidate(0, 0, 4, "Oslo" if right else "Rome", 1.0)
    asked = HeldOut(f"question {number}", ("Oslo",), (Passage("1", "", "Oslo Rome"),), (1.0,), (True,))
    return Ranked([said], 0.0), asked


def test_calibration_error_is_measured_on_questions_that_were_not_fitted() -> None:
    """One half is always right and the other always wrong, with the same scores: a fit on all of them says
    0.5 and looks perfect, though what one half teaches is false on the other."""
    pairs = [_pair(number, number % 2 == 0) for number in range(40)]
    _, _, calibration, figures = _fit(pairs, [], ReaderSettings())
    assert calibration.questions == 40
    assert figures["ece"] > 0.9
    alike = [_pair(number, number % 4 < 2) for number in range(40)]
    assert _fit(alike, [], ReaderSettings())[3]["ece"] < 0.05


def test_one_question_cannot_be_fitted_and_measured() -> None:
    with pytest.raises(DataError, match="fewer than two"):
        _fit([_pair(0, True)], [], ReaderSettings())
