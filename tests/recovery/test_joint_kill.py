"""`rag train orqa` and `realm` killed in the middle, of a refresh too: the same losses, the same weights."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from rag.joint import orqa
from rag.joint.live_index import IndexRefresher, refresh_index
from rag.joint.orqa import OrqaTrainConfig
from rag.joint.realm import RealmTask, RealmTrainConfig, train_realm
from rag.training import checkpoints
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generations
from rag.training.run_log import read_metrics
from tests.conftest import TinyModels
from tests.recovery.test_dpr_kill import _losses
from tests.unit.rag.joint.test_orqa import SMALL, reader_start
from tests.unit.rag.joint.test_realm import FACTS, make_world, settings
from tests.worlds import dies_at, start_process, wait_until, waits_at


def _realm(config: RealmTrainConfig, name: str, kill_at: int) -> None:
    dies_at(*((RealmTask, "loss", kill_at) if name == "step" else (IndexRefresher, "check", kill_at)))
    train_realm(config)


def _orqa(config: OrqaTrainConfig, kill_at: int) -> None:
    dies_at(orqa, "full_loss", kill_at)
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


def _met_while_it_writes(config: RealmTrainConfig) -> None:
    """A trainer that is in the middle of its first checkpoint until a refresher has looked at the run."""
    indexes = Generations(config.out / "indexes")
    waits_at(checkpoints, "_save", 1, (config.out / "heartbeat-refresher.json").exists)
    waits_at(Exchange, "before_step", 12, lambda: len(indexes.all()) > 1)
    train_realm(config, role="trainer")


def _killed_in_its_second_refresh(config: RealmTrainConfig) -> None:
    dies_at(IndexRefresher, "check", 1)
    refresh_index(config)


def test_trainer_and_refresher_are_two_processes(world: Path, tmp_path: Path) -> None:
    config = _config(world, tmp_path / "run").model_copy(update={"poll_s": 0.05})
    config = config.replaced(max_steps=14, epochs=40)
    trainer = start_process(_met_while_it_writes, config)
    wait_until(lambda: [*config.out.glob("checkpoints/.step-*")])
    killed = start_process(_killed_in_its_second_refresh, config)
    killed.join(200)
    assert killed.exitcode == -signal.SIGKILL
    refresh_index(config)  # goes on where the killed one was, and ends with the trainer
    trainer.join(200)
    assert trainer.exitcode == 0
    assert (config.out / "encoder" / "modules.json").exists()
    assert len({r["index_version"] for r in read_metrics(config.out / "metrics.jsonl") if "loss" in r}) > 1


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
