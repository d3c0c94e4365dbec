"""`rag train orqa` and `realm` killed in the middle, of a refresh too: the same losses, the same weights."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rag.joint import orqa
from rag.joint.live_index import IndexRefresher, refresh_index
from rag.joint.orqa_config import OrqaTrainConfig
from rag.joint.realm import RealmTask, RealmTrainConfig, train_realm
from tests.conftest import TinyModels
from tests.recovery.test_dpr_kill import _losses
from tests.unit.rag.joint.test_orqa import SMALL, reader_start
from tests.unit.rag.joint.test_realm import FACTS, make_world, settings
from tests.worlds import start_process, with_a_refresh


def _count_and_kill(owner: Any, name: str, kill_at: int) -> None:
    plain, seen = getattr(owner, name), {"calls": 0}

    def deadly(*arguments: Any, **named: Any) -> Any:
        if seen["calls"] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen["calls"] += 1
        return plain(*arguments, **named)

    setattr(owner, name, deadly)


def _realm(config: RealmTrainConfig, name: str, kill_at: int) -> None:
    _count_and_kill(*((RealmTask, "loss", kill_at) if name == "step" else (IndexRefresher, "check", kill_at)))
    train_realm(config)


def _orqa(config: OrqaTrainConfig, kill_at: int) -> None:
    _count_and_kill(orqa, "full_loss", kill_at)
    orqa.train_orqa(config)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: TinyModels) -> Path:
    return make_world(tmp_path_factory.mktemp("killed"), tiny)


def _config(world: Path, out: Path) -> RealmTrainConfig:
    return settings(
        world, out=out, max_steps=4, refresh="every 2", save_every_s=1e-9, learning_rate=1e-3,
        model={"question_tokens": 32, "dropout": 0.1},
    )  # fmt: skip


def test_realm_goes_on_after_a_kill(world: Path, tmp_path: Path) -> None:
    train_realm(_config(world, tmp_path / "whole"))
    for name, kill_at in (("step", 3), ("refresh", 1)):
        killed = _config(world, tmp_path / name)
        child = start_process(_realm, killed, name, kill_at)
        child.join()
        assert child.exitcode == -signal.SIGKILL
        assert not (killed.out / "encoder").exists()
        train_realm(killed)
        assert _losses(killed.out) == _losses(tmp_path / "whole")
        model = "encoder/model.safetensors"
        assert (killed.out / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_trainer_and_refresher_are_two_processes(world: Path, tmp_path: Path) -> None:
    config = _config(world, tmp_path / "run").model_copy(update={"poll_s": 0.05})
    slow = config.replaced(max_steps=30, epochs=40)
    killed = start_process(refresh_index, slow)
    trainer = start_process(with_a_refresh, train_realm, slow)
    for _ in range(600):
        if list((slow.out / "indexes").glob("generation-*")):
            break
        trainer.join(0.1)
    os.kill(killed.pid or 0, signal.SIGKILL)
    killed.join()
    refresh_index(slow)  # goes on where the killed one was, and ends with the trainer
    trainer.join()
    assert trainer.exitcode == 0
    records = [json.loads(line) for line in (slow.out / "metrics.jsonl").read_text().splitlines()]
    assert len({record["index_version"] for record in records if "index_version" in record}) > 1


def test_orqa_goes_on_after_a_kill(world: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text(
        "".join(json.dumps({"question": f"who wrote {c}", "answers": [name]}) + "\n" for c, name in FACTS)
    )

    def config(out: str) -> OrqaTrainConfig:
        return OrqaTrainConfig(
            out=tmp_path / out, train_files=(asked,), index=world / "index", max_steps=5, save_every_s=1e-9,
            epochs=9, reader=reader_start(world / "mlm"), log_every_steps=1, **SMALL,
        )  # fmt: skip

    orqa.train_orqa(config("whole"))
    child = start_process(_orqa, config("killed"), 3)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    orqa.train_orqa(config("killed"))
    assert _losses(tmp_path / "killed") == _losses(tmp_path / "whole")
    for name in ("encoder/query_encoder/model.safetensors", "reader/weights.int8.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
