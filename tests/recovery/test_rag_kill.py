"""`rag train rag` end to end, killed between steps and in a refresh; in two processes, and shared by two."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rag.config import load_config
from rag.joint.live_index import IndexRefresher, refresh_index
from rag.joint.rag import RagTrainConfig, train_rag
from rag.joint.task import JointTask
from rag.training.distributed import World
from rag.training.run_log import read_metrics
from tests.tiny_joint import joint_world
from tests.worlds import run_world, start_process, with_a_refresh


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return joint_world(tmp_path_factory.mktemp("killed"), copy_steps=5)


def _config(world: dict[str, Any], out: Path, **changes: Any) -> RagTrainConfig:
    usual = {
        "document_side": "reencode", "refresh": "2:2", "poll_every_steps": 1, "probe_questions": 5,
        "probe_passages": 5, "max_steps": 6, "epochs": 9, "batch_size": 4, "save_every_s": 1e-9,
        "log_every_steps": 1, "learning_rate": 1e-3, "marginal": "token",
        "model": {"shared": False, "dropout": 0.1},
    }  # fmt: skip
    return load_config(RagTrainConfig, overrides={**world, **usual, "out": str(out), **changes})


def _killed(config: RagTrainConfig, owner: type[Any], name: str, kill_at: int) -> None:
    plain, calls = getattr(owner, name), [0]

    def deadly(*arguments: Any, **named: Any) -> Any:
        if calls[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        calls[0] += 1
        return plain(*arguments, **named)

    setattr(owner, name, deadly)
    train_rag(config)


def _losses(out: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in read_metrics(out / "metrics.jsonl") if "loss" in r}


def test_a_killed_run_ends_as_an_undisturbed_one(world: dict[str, Any], tmp_path: Path) -> None:
    whole = train_rag(_config(world, tmp_path / "whole"))
    for owner, name, kill_at in ((JointTask, "loss", 3), (IndexRefresher, "check", 1)):
        config = _config(world, tmp_path / name)
        child = start_process(_killed, config, owner, name, kill_at)
        child.join(300)
        assert child.exitcode == -signal.SIGKILL
        assert not (config.out / "reader").exists()
        finished = train_rag(config)
        assert _losses(config.out) == _losses(tmp_path / "whole")
        for file in ("model.safetensors", "question_encoder/model.safetensors"):
            assert (finished / file).read_bytes() == (whole / file).read_bytes()


def test_trainer_and_refresher_may_be_two_processes(world: dict[str, Any], tmp_path: Path) -> None:
    config = _config(world, tmp_path / "run", max_steps=20, poll_s=0.02, refresh="1:4")
    refresher = start_process(refresh_index, config)
    with_a_refresh(train_rag, config)
    refresher.join(120)
    assert refresher.exitcode == 0
    versions = {r["index_version"] for r in read_metrics(config.out / "metrics.jsonl") if "loss" in r}
    assert len(versions) > 1


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
