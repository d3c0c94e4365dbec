"""Joint training killed in a refresh, met in the middle of a checkpoint, shared by two processes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rag.config import load_config
from rag.joint.config import RagTrainConfig
from rag.joint.live_index import IndexRefresher, refresh_index
from rag.joint.rag import train_rag
from rag.training import checkpoints
from rag.training.distributed import World
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generations
from rag.training.run_log import read_metrics
from tests.tiny_joint import joint_world
from tests.worlds import killed_at, run_world, start_process, wait_until, waits_at


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return joint_world(tmp_path_factory.mktemp("killed"), copy_steps=5)


def _config(world: dict[str, Any], out: Path, **changes: Any) -> RagTrainConfig:
    usual = {
        "document_side": "reencode", "refresh": "2:2", "poll_every_steps": 1, "probe_questions": 5,
        "probe_passages": 5, "max_steps": 6, "epochs": 9, "batch_size": 4, "save_every_s": 1e-9,
        "log_every_steps": 1, "learning_rate": 1e-3, "marginal": "token", "poll_s": 0.02,
        "model": {"shared": False, "dropout": 0.1},
    }  # fmt: skip
    return load_config(RagTrainConfig, overrides={**world, **usual, "out": str(out), **changes})


def _losses(out: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in read_metrics(out / "metrics.jsonl") if "loss" in r}


def test_killed_in_a_refresh_it_ends_as_an_undisturbed_run(world: dict[str, Any], tmp_path: Path) -> None:
    whole, config = train_rag(_config(world, tmp_path / "whole")), _config(world, tmp_path / "killed")
    killed_at(IndexRefresher, "check", 2, train_rag, config)  # the second refresh has encoded the corpus
    assert not (config.out / "reader").exists()
    finished = train_rag(config)
    assert _losses(config.out) == _losses(tmp_path / "whole")
    for file in ("model.safetensors", "question_encoder/model.safetensors"):
        assert (finished / file).read_bytes() == (whole / file).read_bytes()


def _met_while_it_writes(config: RagTrainConfig) -> None:
    """A trainer that is in the middle of its first checkpoint until a refresher has looked at the run."""
    indexes = Generations(config.out / "indexes")
    waits_at(checkpoints, "_save", 1, (config.out / "heartbeat-refresher.json").exists)
    waits_at(Exchange, "before_step", 12, lambda: len(indexes.all()) > 1)
    train_rag(config, role="trainer")


def test_trainer_and_refresher_are_two_processes(world: dict[str, Any], tmp_path: Path) -> None:
    config = _config(world, tmp_path / "run", max_steps=14)
    trainer = start_process(_met_while_it_writes, config)
    wait_until(lambda: [*config.out.glob("checkpoints/.step-*")])
    killed_at(IndexRefresher, "check", 2, refresh_index, config)
    refresh_index(config)  # goes on where the killed one was, and ends with the trainer
    trainer.join(300)
    assert trainer.exitcode == 0
    assert (config.out / "reader").exists()
    assert len({r["index_version"] for r in read_metrics(config.out / "metrics.jsonl") if "loss" in r}) > 1


def _train(world: World, config: RagTrainConfig) -> None:
    torch.manual_seed(world.rank)  # without dropout nothing may depend on it
    train_rag(config)


def test_two_processes_are_one(world: dict[str, Any], tmp_path: Path) -> None:
    """Questions are shared, gradients added: the same losses."""
    still = {"model": {"shared": False, "dropout": 0.0}, "max_steps": 4}
    train_rag(_config(world, tmp_path / "one", **still))
    run_world(2, tmp_path / "ranks", _train, _config(world, tmp_path / "two", **still))
    one, two = _losses(tmp_path / "one"), _losses(tmp_path / "two")
    assert one.keys() == two.keys()
    assert list(two.values()) == pytest.approx(list(one.values()), rel=1e-3)
