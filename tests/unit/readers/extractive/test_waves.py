"""Reading in waves: everything by default, no more than asked for, and the same answers from what
is read.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag.core.types import Passage
from readers.extractive.model import FastSpanModel, SpanModel, SpanWeights
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import EFFORTS, SIX_LAYERS, Effort
from tests.support.reading import read_lists
from tests.tiny_reader import tiny_tokenizer
from tests.unit.readers.conftest import SMALL

PASSAGES = [
    Passage(str(n), "Tower", f"the tower in city {n} is {300 + n} meters high, near river {n}")
    for n in range(9)
]
QUESTIONS = ["how many meters has the tower?", "which river is near?"]
RETRIEVED = [PASSAGES, PASSAGES[3:6]]
SCORES = [
    [float(n) for n in range(9)],
    [1.0, 3.0, 2.0],
]  # the first question's best passage is its last


@pytest.fixture(scope="module")
def network(encoder_folder: Path) -> FastSpanModel:
    model = SpanModel.from_encoder(encoder_folder, seed=3)
    model.add_heads(passage=True, skim_layer=1, seed=5)
    return FastSpanModel(SpanWeights.of(model), "fp32")


@pytest.fixture(autouse=True)
def usual_efforts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "normal", EFFORTS["normal"])


def reader(network: FastSpanModel, most: int | None = None, **effort: Any) -> ExtractiveReader:
    """A reader whose effort "normal" is this one, until the next is made."""
    most = None if most is None else most * SIX_LAYERS // 2  # two layers here
    EFFORTS["normal"] = Effort(most=most, **effort)
    changes: Any = {
        "skim_layer": 1,
        "retrieval_weight": 0.5,
        "answer_types": True,
        "effort": "normal",
    }
    return ExtractiveReader(network, tiny_tokenizer(), SMALL.replaced(**changes))


def test_waves_that_nothing_ends_read_everything_and_answer_as_full_effort(
    network: FastSpanModel,
) -> None:
    full = read_lists(reader(network), QUESTIONS, RETRIEVED, SCORES)
    waves = read_lists(
        reader(network, waves=(1, 2, 6), enough=(1, 1)), QUESTIONS, RETRIEVED, SCORES
    )
    for item, other in zip(full, waves, strict=True):
        assert [a.text for a in item.answers] == [a.text for a in other.answers]
        assert [a.evidence for a in item.answers] == [a.evidence for a in other.answers]
        assert [a.confidence for a in item.answers] == pytest.approx(
            [a.confidence for a in other.answers]
        )
        assert item.no_answer_confidence == pytest.approx(other.no_answer_confidence)
        assert item.reading == other.reading
    lengths = [len(row.ids) for row in reader(network).rows(QUESTIONS[:1], RETRIEVED[:1]).rows]
    assert full[0].reading == {"passages": 9, "dropped": 0, "token_layers": 2 * sum(lengths)}


def test_a_likely_answer_ends_the_reading(network: FastSpanModel) -> None:
    results = read_lists(reader(network, waves=(2, 7), enough=(0,)), QUESTIONS, RETRIEVED, SCORES)
    assert [result.reading["passages"] for result in results] == [2, 2]
    assert {answer.evidence.passage_id for answer in results[0].answers} <= {"7", "8"}
    assert {answer.evidence.passage_id for answer in results[1].answers} <= {"4", "5"}
    likely = [result.answers[0].confidence for result in results]
    between = reader(network, waves=(2, 7), enough=((likely[0] + likely[1]) / 2,))
    read = [
        result.reading["passages"] for result in read_lists(between, QUESTIONS, RETRIEVED, SCORES)
    ]
    assert sorted(read) == ([2, 9] if likely[0] < likely[1] else [2, 3])


def test_what_the_early_head_thinks_little_of_is_dropped(network: FastSpanModel) -> None:
    rows, scores = reader(network).score(QUESTIONS, RETRIEVED)
    mine = scores.skims[:9][::-1]  # by retrieval score
    drop = max(0.0, float(mine[0] - np.median(mine[1:])) + 1e-3)
    read = [True, *(mine[1:] >= mine[0] - drop)]
    assert 1 < sum(read) < 9
    result = read_lists(
        reader(network, waves=(1, 8), enough=(1,), drop=drop), QUESTIONS, RETRIEVED, SCORES
    )[0]
    lengths = np.array([len(row.ids) for row in rows.rows[:9]])[::-1]
    assert result.reading == {
        "passages": 9,
        "dropped": 9 - sum(read),
        "token_layers": int((lengths * np.where(read, 2, 1)).sum()),
    }
    left = {str(8 - place) for place in np.nonzero(read)[0]}
    assert {answer.evidence.passage_id for answer in result.answers} <= left


def test_the_limit_ends_the_reading_and_is_reported(network: FastSpanModel) -> None:
    rows = reader(network).rows(QUESTIONS[:1], RETRIEVED[:1]).rows
    cost = 2 * np.array([len(row.ids) for row in rows])[::-1]  # best passage first
    for read in (1, 2, 4, 8):
        for most in (int(cost[:read].sum()), int(cost[: read + 1].sum()) - 1):
            first, other = read_lists(
                reader(network, waves=(1, 2, 6), enough=(1, 1), most=most),
                QUESTIONS,
                RETRIEVED,
                SCORES,
            )
            expected = {"passages": read, "dropped": 0, "token_layers": int(cost[:read].sum())}
            assert first.reading == {**expected, "over_limit": 9 - read}
            assert other.reading["passages"] <= 3
    whole = reader(network, waves=(1, 2, 6), enough=(1, 1), most=int(cost.sum()))
    assert (
        "over_limit" not in read_lists(whole, QUESTIONS[:1], RETRIEVED[:1], SCORES[:1])[0].reading
    )
    beyond = reader(network, waves=(2, 7), enough=(1,), most=1)  # the first wave is always read
    assert read_lists(beyond, QUESTIONS[:1], RETRIEVED[:1], SCORES[:1])[0].reading["passages"] == 2


def test_dropped_rows_leave_the_others_as_they_are(network: FastSpanModel) -> None:
    whole = reader(network)
    rows = whole.rows(QUESTIONS, RETRIEVED).rows
    _, everything = whole.score(QUESTIONS, RETRIEVED)
    middle = np.full(len(rows), np.median(everything.skims), np.float32)
    part = whole.score_rows(rows, middle)
    stays = everything.skims >= middle
    assert 0 < stays.sum() < len(stays)
    np.testing.assert_allclose(part.skims, everything.skims, atol=1e-5)
    np.testing.assert_allclose(part.spans[stays], everything.spans[stays], atol=1e-4)
    np.testing.assert_allclose(part.words[stays], everything.words[stays], atol=1e-4)
    assert np.isneginf(part.spans[~stays]).all()
    assert np.isneginf(whole.score_rows(rows, middle + 1e6).spans).all()
