"""The trainer's side: what goes out when, what comes in, and what a resumed run goes on with."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag.core.errors import MismatchedArtifactError
from rag.training.config import RefreshedConfig
from rag.training.distributed import World
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.staleness import DriftMeter
from tests.refreshing import Quick, publish, shelves


def bystander(
    out: Path, *, key: str = "toy", in_line: bool = False, drift: DriftMeter | None = None,
    waits: Callable[[float], None] | None = None, **settings: Any,
) -> tuple[Exchange, list[str]]:  # fmt: skip
    """A trainer's side, every step of which hands over a snapshot; and the versions it takes up.

    Args:
        waits: the trainer cannot begin without a result, and calls this while it waits.
    """
    taken: list[str] = []

    def take_up(generation: Generation) -> Mapping[str, float]:
        taken.append(generation.version)
        return {"refresh/figure": 0.123456}

    def write(folder: Path) -> None:
        (folder / "model").write_text("weights")

    given = {"refresh": "every 1", "poll_every_steps": 1, "poll_s": 0.01, **settings}
    return Exchange(
        RefreshedConfig(**given), *shelves(out), write, take_up, world=World.single("cpu"), key=key,
        refresher=Quick(*shelves(out), key=key, keep=9) if in_line else None, in_line=in_line, drift=drift,
        must_wait=lambda: waits is not None and not taken, show_steps=2,
        sleep=waits or (lambda _: pytest.fail("the trainer waited")),
    ), taken  # fmt: skip


def steps_of(generations: Generations) -> list[int]:
    return [generation.step for generation in generations.all()]


def test_in_line_every_snapshot_is_refreshed_at_once(tmp_path: Path) -> None:
    exchange, taken = bystander(tmp_path, in_line=True, refresh="every 10", keep_generations=9)
    fields = []
    for step in range(25):
        exchange.before_step(step)
        fields.append(exchange.log_fields(step + 1))
    snapshots, made = shelves(tmp_path)
    assert steps_of(snapshots) == [0, 10, 20]
    assert [generation.meta["before"] for generation in made.all()] == [None, *taken[:2]]
    assert [entry["index_age_steps"] for entry in fields[8:12]] == [9, 10, 1, 2]
    assert fields[10] == {"index_version": taken[1], "index_age_steps": 1, "refresh/figure": 0.1235}
    assert ["refresh/figure" in entry for entry in fields[8:14]] == [False, False, True, True, False, False]


def test_newer_results_are_taken_up_without_waiting(tmp_path: Path) -> None:
    exchange, taken = bystander(tmp_path, poll_every_steps=4)
    _, index = shelves(tmp_path)
    for step in range(6):
        exchange.before_step(step)
        if step == 1:
            first = publish(index, step=0)
    assert taken == [first.version]  # at step 4, when it looked
    assert exchange.log_fields(6)["index_age_steps"] == 6
    newer = publish(index, step=5)
    for step in range(6, 10):
        exchange.before_step(step)
    assert taken == [first.version, newer.version]


def test_without_any_result_it_waits_for_the_first(tmp_path: Path) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            publish(shelves(tmp_path)[1], step=0)

    exchange, taken = bystander(tmp_path, waits=nap, poll_s=0.5)
    exchange.before_step(0)
    assert naps == [0.5] * 3
    assert len(taken) == 1


def test_the_first_result_is_asked_for_whenever_the_schedule_begins(tmp_path: Path) -> None:
    snapshots, index = shelves(tmp_path)

    def nap(seconds: float) -> None:
        assert steps_of(snapshots) == [0]  # or both processes would wait for each other
        publish(index, step=0)

    exchange, taken = bystander(tmp_path, waits=nap, refresh="100:50")
    for step in range(101):
        exchange.before_step(step)
    assert len(taken) == 1
    assert steps_of(snapshots) == [0, 100]


def test_never_exchanges_nothing(tmp_path: Path) -> None:
    exchange, taken = bystander(tmp_path, refresh="never")
    snapshots, index = shelves(tmp_path)
    publish(index, step=0)
    for step in range(20):
        exchange.before_step(step)
    assert (taken, steps_of(snapshots)) == ([], [])
    assert exchange.log_fields(20) == {"index_version": "file", "index_age_steps": 20}


def test_a_resumed_run_goes_on_with_the_result_of_its_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exchange, taken = bystander(tmp_path, in_line=True, refresh="every 10")
    for step in range(13):
        exchange.before_step(step)
    state = dict(exchange.extra_state())
    snapshots, index = shelves(tmp_path)
    later = publish(index, step=20)  # of the steps that the kill took away

    resumed, again = bystander(tmp_path, in_line=True, refresh="every 10")
    resumed.load_extra_state(state)
    assert again == [taken[-1]]
    assert resumed.log_fields(14) == exchange.log_fields(14)
    assert resumed.extra_state() == state
    resumed.before_step(14)
    assert steps_of(snapshots) == [0, 10]

    index.prune(keep=1)  # spares what the checkpoint needs
    spared, kept = bystander(tmp_path, in_line=True)
    spared.load_extra_state(state)
    assert kept == again

    index.pin(())
    index.prune(keep=1)
    assert [generation.version for generation in index.all()] == [later.version]
    renewed, lost = bystander(tmp_path, in_line=True)
    renewed.load_extra_state(state)
    assert "was deleted: it is made again" in caplog.text
    assert lost == []  # not those of a later model
    renewed.before_step(13)
    assert len(lost) == 1


def test_a_result_of_a_step_that_is_still_to_come_is_passed_over(tmp_path: Path) -> None:
    """It is of a model that a kill took away; another process made it."""
    exchange, taken = bystander(tmp_path)
    _, index = shelves(tmp_path)
    first, _ = publish(index, step=0), publish(index, step=7)
    exchange.before_step(4)
    assert taken == [first.version]
    assert index.prune(keep=1) == []  # nor does the other process delete what is in use
    exchange.before_step(8)
    assert len(taken) == 2


def test_drift_is_measured_from_the_last_snapshot_even_after_a_resume(tmp_path: Path) -> None:
    angle = 0.0

    def encode() -> Any:
        return np.array([[np.cos(angle), np.sin(angle)]] * 2, np.float32)

    settings: dict[str, Any] = {"refresh": "drift>0.1", "poll_every_steps": 2, "keep_generations": 9}
    exchange, _ = bystander(tmp_path, drift=DriftMeter(encode), **settings)
    snapshots, _ = shelves(tmp_path)
    for step in range(5):
        angle = 0.1 * step  # 1 - cos(0.4) is 0.08
        exchange.before_step(step)
    assert steps_of(snapshots) == [0]
    resumed, _ = bystander(tmp_path, drift=DriftMeter(encode), **settings)
    resumed.load_extra_state(exchange.extra_state())
    angle = 0.5
    resumed.before_step(5)  # it looks at every second step
    assert steps_of(snapshots) == [0]
    resumed.before_step(6)
    assert steps_of(snapshots) == [0, 6]


def test_what_another_run_made_is_left_alone(tmp_path: Path) -> None:
    _, index = shelves(tmp_path)
    for step, key in enumerate(("toy", "another")):
        publish(index, step=step, key=key)
    exchange, taken = bystander(tmp_path)
    exchange.before_step(5)
    assert taken == [index.all()[0].version]


def test_a_checkpoint_is_not_gone_on_from_with_other_data(tmp_path: Path) -> None:
    state = bystander(tmp_path)[0].extra_state()
    bystander(tmp_path)[0].load_extra_state(state)
    with pytest.raises(MismatchedArtifactError, match="began with other questions, or another index"):
        bystander(tmp_path, key="another")[0].load_extra_state(state)


def test_a_trainer_that_nobody_answers_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exchange, taken = bystander(tmp_path)
    for step in range(3):
        assert "is the other process running" not in caplog.text
        exchange.before_step(step)
    assert "the last 3 snapshots gave no result: is the other process running" in caplog.text
    caplog.clear()
    publish(shelves(tmp_path)[1], step=2)
    for step in range(3, 6):
        exchange.before_step(step)  # one was taken up: counted anew
    assert len(taken) == 1
    assert "is the other process running" not in caplog.text
