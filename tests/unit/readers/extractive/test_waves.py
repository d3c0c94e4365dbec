"""Reading in waves: everything by default, no more than asked for, and the same answers from what
is read.
"""

from typing import Any

import pytest

from rag.core.types import AnswerSet, Passage
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import EFFORTS, Effort
from tests.support.reading import read_lists, read_one, with_settings

PASSAGES = [
    Passage(str(n), "Tower", f"the tower in city {n} is {300 + n} meters high, near river {n}")
    for n in range(9)
]
QUESTIONS = ["how many meters has the tower?", "which river is near?"]
RETRIEVED = [PASSAGES, PASSAGES[3:6]]
# The first question's best passage is its last.
SCORES = [[float(n) for n in range(9)], [1.0, 3.0, 2.0]]


@pytest.fixture(autouse=True)
def usual_efforts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "normal", EFFORTS["normal"])


def read(reader: ExtractiveReader, **effort: Any) -> list[AnswerSet]:
    """Answers with this effort."""
    EFFORTS["normal"] = Effort(**effort)
    changed = with_settings(reader, retrieval_weight=0.5, effort="normal")
    return read_lists(changed, QUESTIONS, RETRIEVED, SCORES)


def test_waves_that_nothing_ends_read_everything_and_answer_as_full_effort(
    reader: ExtractiveReader,
) -> None:
    full = read(reader)
    for result, expected in zip(read(reader, waves=(1, 2, 6), enough=(1, 1)), full, strict=True):
        assert [a.text for a in result.answers] == [a.text for a in expected.answers]
        assert [a.evidence for a in result.answers] == [a.evidence for a in expected.answers]
        assert [a.confidence for a in result.answers] == pytest.approx(
            [a.confidence for a in expected.answers]
        )
        assert result.no_answer_confidence == pytest.approx(expected.no_answer_confidence)
        assert result.reading == expected.reading
    rows = reader.rows(QUESTIONS[:1], RETRIEVED[:1]).rows
    tokens = sum(len(row.ids) for row in rows)
    assert full[0].reading == {"passages": 9, "token_layers": reader.model.depth * tokens}


def test_a_likely_answer_ends_the_reading(reader: ExtractiveReader) -> None:
    results = read(reader, waves=(2, 7), enough=(0,))
    assert [result.reading["passages"] for result in results] == [2, 2]
    assert {answer.evidence.passage_id for answer in results[0].answers} <= {"7", "8"}
    assert {answer.evidence.passage_id for answer in results[1].answers} <= {"4", "5"}
    first, second = (result.answers[0].confidence for result in results)
    between = read(reader, waves=(2, 7), enough=((first + second) / 2,))
    n_read = [result.reading["passages"] for result in between]
    assert n_read == ([9, 2] if first < second else [2, 3])


def test_passages_without_text_do_not_end_the_reading(reader: ExtractiveReader) -> None:
    EFFORTS["normal"] = Effort(waves=(1, 1), enough=(1,))
    changed = with_settings(reader, effort="normal")
    passages = [Passage("e", "Tower", ""), PASSAGES[0]]
    result = read_one(changed, QUESTIONS[0], passages, [2.0, 1.0])
    assert result.answers[0].evidence.passage_id == "0"
