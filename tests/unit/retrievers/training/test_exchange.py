"""The trainer's side of ANCE: what goes out when, what comes in, and what a resumed run goes on with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rag.training.distributed import World
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.staleness import DriftMeter, Probes
from retrievers.examples.tokens import TokenTable
from retrievers.training.ance import negatives_exchange
from retrievers.training.ance_refresher import MinedNegatives
from retrievers.training.config import AnceTrainConfig


class Batches:
    """Remembers what it was told to use."""

    def __init__(self, examples: int, negatives: list[list[int]]) -> None:
        self.data = Data(examples, negatives)
        self.used: list[str] = []
        self.table = TokenTable.of([])

    def use_negatives(self, table: TokenTable, version: str) -> None:
        self.table = table
        self.used.append(version)


class Data(SimpleNamespace):
    def __init__(self, examples: int, negatives: list[list[int]]) -> None:
        super().__init__(negatives=TokenTable.of(negatives), examples=examples)

    def __len__(self) -> int:
        return int(self.examples)


def mine(out: Path, step: int, snapshot: str = "s", figure: float = 50.0) -> Generation:
    probes = Probes(np.ones((2, 3), np.float32), np.zeros((2, 4), np.int64))
    mined = MinedNegatives(
        TokenTable.of([[step], [], [7]]), probes, {"held_out/mrr": figure, "mined/x": 1.0, "alarms": []}
    )
    return Generations(out / "negatives").publish(
        mined.write, step=step, meta={"key": "k", "snapshot": snapshot, "turn": 0}
    )


class Miner:
    """Mines at once."""

    def __init__(self, out: Path) -> None:
        self.out, self.followed = out, list[str | None]()

    def refresh(self, snapshot: Generation, *, before: Generation | None) -> Generation:
        self.followed.append(before.version if before is not None else None)
        return mine(self.out, snapshot.step, snapshot.version)


def make(out: Path, batches: Batches, inline: Miner | None = None, **settings: Any) -> Exchange:
    given = {"refresh": "every 10", "poll_every_steps": 4, "log_every_steps": 2, **settings}
    drift = given.pop("meter", None)
    sleep = given.pop("sleep", lambda _: None)
    config = AnceTrainConfig(out=out, train_files=("t",), index="i", **given)
    return negatives_exchange(
        config, batches, lambda folder: folder.mkdir(), key="k", world=World.single("cpu"),  # type: ignore[arg-type]
        in_line=inline is not None, refresher=inline, drift=drift, sleep=sleep,
    )  # fmt: skip


def snapshots(out: Path) -> list[int]:
    return [generation.step for generation in Generations(out / "snapshots").all()]


def test_in_line_every_snapshot_is_mined_at_once(tmp_path: Path) -> None:
    batches, miner = Batches(3, [[], [], []]), Miner(tmp_path)
    exchange = make(tmp_path, batches, miner, keep_generations=9)
    fields = []
    for step in range(25):
        exchange.before_step(step)
        fields.append(exchange.log_fields(step + 1))
    assert snapshots(tmp_path) == [0, 10, 20]
    assert miner.followed == [None, *batches.used[:2]]
    assert [entry["index_age_steps"] for entry in fields[8:12]] == [9, 10, 1, 2]
    assert fields[10]["index_version"] == batches.used[1]
    assert ["held_out/mrr" in entry for entry in fields[8:14]] == [False, False, True, True, False, False]
    assert "mined/x" not in fields[10]
    assert batches.table[0].tolist() == [20]


def test_newer_negatives_are_taken_up_without_waiting(tmp_path: Path) -> None:
    batches = Batches(3, [[1], [2], [3]])
    exchange = make(tmp_path, batches, sleep=lambda _: pytest.fail("the trainer waited"))
    for step in range(6):
        exchange.before_step(step)
        if step == 1:
            first = mine(tmp_path, 0)
    assert batches.used == [first.version]  # at step 4, when it looked
    assert exchange.log_fields(6)["index_age_steps"] == 6
    newer = mine(tmp_path, 5)
    for step in range(6, 10):
        exchange.before_step(step)
    assert batches.used == [first.version, newer.version]


def test_without_any_negatives_it_waits_for_the_first(tmp_path: Path) -> None:
    batches, waits = Batches(3, [[], [], []]), []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            mine(tmp_path, 0)

    exchange = make(tmp_path, batches, sleep=sleep, poll_s=0.5)
    exchange.before_step(0)
    assert waits == [0.5] * 3
    assert len(batches.used) == 1


def test_never_exchanges_nothing(tmp_path: Path) -> None:
    batches = Batches(3, [[1], [2], [3]])
    mine(tmp_path, 0)
    exchange = make(tmp_path, batches, refresh="never")
    for step in range(20):
        exchange.before_step(step)
    assert (batches.used, snapshots(tmp_path)) == ([], [])
    assert exchange.log_fields(20) == {"index_version": "file", "index_age_steps": 20}


def test_a_resumed_run_goes_on_with_the_negatives_of_its_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches(3, [[], [], []])
    exchange = make(tmp_path, batches, Miner(tmp_path))
    for step in range(13):
        exchange.before_step(step)
    state = dict(exchange.extra_state())
    later = mine(tmp_path, 20)  # of the steps that the kill took away

    again = Batches(3, [[], [], []])
    resumed = make(tmp_path, again, Miner(tmp_path))
    resumed.load_extra_state(state)
    assert again.used == [batches.used[-1]]
    assert resumed.log_fields(14) == exchange.log_fields(14)
    assert resumed.extra_state() == state
    resumed.before_step(14)
    assert snapshots(tmp_path) == [0, 10]

    negatives = Generations(tmp_path / "negatives")
    negatives.prune(keep=1)  # spares what the checkpoint needs
    kept = Batches(3, [[], [], []])
    make(tmp_path, kept, Miner(tmp_path)).load_extra_state(state)
    assert kept.used == again.used

    negatives.pin(())
    negatives.prune(keep=1)
    assert [generation.version for generation in negatives.all()] == [later.version]
    lost = Batches(3, [[], [], []])
    renewed = make(tmp_path, lost, Miner(tmp_path))
    renewed.load_extra_state(state)
    assert "was deleted: it is made again" in caplog.text
    assert lost.used == []  # not those of a later model
    renewed.before_step(13)
    assert len(lost.used) == 1


def test_negatives_of_a_step_that_is_still_to_come_are_passed_over(tmp_path: Path) -> None:
    """They are of a model that a kill took away; another process mined with it."""
    batches = Batches(3, [[1], [2], [3]])
    exchange = make(tmp_path, batches)
    first, _ = mine(tmp_path, 0), mine(tmp_path, 7)
    exchange.before_step(4)
    assert batches.used == [first.version]
    negatives = Generations(tmp_path / "negatives")
    assert negatives.prune(keep=1) == []  # nor does the other process delete those in use
    exchange.before_step(8)
    assert len(batches.used) == 2


def test_drift_is_measured_from_the_last_snapshot_even_after_a_resume(tmp_path: Path) -> None:
    angle = 0.0

    def encode() -> Any:
        return np.array([[np.cos(angle), np.sin(angle)]] * 2, np.float32)

    batches = Batches(3, [[1], [2], [3]])
    settings = {"refresh": "drift>0.1", "poll_every_steps": 2, "keep_generations": 9}
    exchange = make(tmp_path, batches, meter=DriftMeter(encode), **settings)
    for step in range(5):
        angle = 0.1 * step  # 1 - cos(0.4) is 0.08
        exchange.before_step(step)
    assert snapshots(tmp_path) == [0]
    resumed = make(tmp_path, batches, meter=DriftMeter(encode), **settings)
    resumed.load_extra_state(exchange.extra_state())
    angle = 0.5
    resumed.before_step(5)  # it looks at every second step
    assert snapshots(tmp_path) == [0]
    resumed.before_step(6)
    assert snapshots(tmp_path) == [0, 6]
