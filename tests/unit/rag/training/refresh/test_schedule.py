"""When a refresh is due, and the figures that say how stale or collapsed a version is."""

import numpy as np
import pytest

from rag.core.errors import ConfigError, DataError
from rag.training.refresh.schedule import RefreshSchedule
from rag.training.refresh.staleness import (
    Staleness,
    distinct_share,
    mean_cosine,
    score_entropy,
    top_k_overlap,
)


def due_steps(text: str, steps: int) -> list[int]:
    """Steps at which a run that refreshes at once would refresh."""
    schedule, last, due = RefreshSchedule.parse(text), None, []
    for step in range(steps):
        if schedule.is_due(step, last):
            due.append(step)
            last = step
    return due


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("never", []),
        ("every 4", [0, 4, 8]),
        ("0:2,5:4", [0, 2, 4, 8]),
        ("6:3", [6, 9]),
        ("drift>0.1", [0]),
        ("every 5,drift>0.1", [0, 5, 10]),
    ],
)
def test_schedules(text: str, expected: list[int]) -> None:
    assert due_steps(text, 12) == expected


def test_drift_alone_or_beside_an_interval() -> None:
    schedule = RefreshSchedule.parse("every 100, drift > .25")
    assert schedule.watches_drift
    assert schedule.is_due(10, 0, drift=0.3)
    assert not schedule.is_due(10, 0, drift=0.25)
    assert not schedule.is_due(10, 0)
    assert schedule.is_due(100, 0)


@pytest.mark.parametrize("text", ["never", "every 500", "0:500,2000:2000", "drift>0.05", "3:4,drift>0.00005"])
def test_a_schedule_prints_as_it_is_read(text: str) -> None:
    schedule = RefreshSchedule.parse(text)
    assert RefreshSchedule.parse(str(schedule)) == schedule
    assert schedule.is_never == (text == "never")


@pytest.mark.parametrize(
    "text",
    ["", "sometimes", "every 0", "every", "500", "10:5,3:5", "3:5,3:6", "drift>1,drift>2", "never,every 5"],
)
def test_what_is_no_schedule_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(ConfigError, match="from step:every"):
        RefreshSchedule.parse(text)


def test_overlap_counts_only_what_was_found() -> None:
    stale, fresh = np.array([[0, 1, -1], [5, 6, 7]]), np.array([[1, 0, -1], [7, 8, 9]])
    assert top_k_overlap(stale, fresh) == pytest.approx((1 + 1 / 3) / 2)
    assert top_k_overlap(np.full((1, 2), -1), np.full((1, 2), -1)) == 1.0
    with pytest.raises(DataError, match="2 stale result lists for 1"):
        top_k_overlap(stale, fresh[:1])


def test_cosine_is_that_of_brute_force() -> None:
    draw = np.random.default_rng(0)
    old, new = draw.normal(size=(2, 20, 8)).astype(np.float32)
    expected = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(old, new, strict=True)]
    assert mean_cosine(old, new) == pytest.approx(np.mean(expected), abs=1e-6)
    assert mean_cosine(old, 3 * old) == pytest.approx(1)
    with pytest.raises(DataError, match="shapes"):
        mean_cosine(old, new[:3])


def test_entropy_falls_with_the_temperature_and_ignores_what_is_missing() -> None:
    scores = np.random.default_rng(1).normal(size=(5, 10))
    warm, cold = score_entropy(scores), score_entropy(scores, 0.05)
    assert 0 < cold < warm < 1
    padded = np.concatenate([scores, np.full((5, 3), -np.inf)], axis=1)
    assert score_entropy(padded) == pytest.approx(warm)


def test_distinct_share_is_of_what_is_possible() -> None:
    everyone_the_same = np.tile(np.arange(10), (3000, 1))
    assert distinct_share(everyone_the_same, documents=1_000_000) == pytest.approx(0.001)
    all_of_a_small_corpus = np.arange(3000)[:, None] % 500
    assert distinct_share(all_of_a_small_corpus, documents=500) == 1.0
    assert distinct_share(np.full((2, 2), -1), documents=9) == 0.0


def test_alarms_say_what_to_do() -> None:
    fine = Staleness(100, overlap=0.9, cosine=0.95, entropy=0.5, distinct=0.8)
    assert fine.alarms() == []
    assert fine.record()["refresh/overlap"] == 0.9
    bad = Staleness(2500, overlap=0.1, cosine=0.2, entropy=0.0, distinct=0.001).alarms()
    assert [text.split(":")[0] for text in bad] == ["stale", "drift", "peaked", "collapse"]
    assert "2,500 steps" in bad[0]
