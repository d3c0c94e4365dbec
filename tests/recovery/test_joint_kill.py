"""Joint training killed in a refresh, and shared by two processes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rag.config import load_config
from rag.joint.config import RagTrainConfig
from rag.training.distributed import World
from tests.support.training import records
from tests.tiny_joint import joint_world
from tests.worlds import run_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return joint_world(tmp_path_factory.mktemp("killed"), copy_steps=5)


def _config(world: dict[str, Any], out: Path, **changes: Any) -> RagTrainConfig:
    usual = {
        "frozen": None,
        "refresh_every_steps": 2,
        "max_steps": 6,
        "epochs": 9,
        "batch_size": 4,
        "save_every_s": 1e-9,
        "log_every_steps": 1,
        "learning_rate": 1e-3,
        "marginal": "token",
        "shared": False,
        "dropout": 0.1,
    }
    return load_config(RagTrainConfig, overrides={**world, **usual, "out": str(out), **changes})


def _losses(out: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in records(out)}


def _train(world: World, config: RagTrainConfig) -> None:
    torch.manual_seed(world.rank)  # without dropout nothing may depend on it
    config.train_model()


def test_two_processes_are_one(world: dict[str, Any], tmp_path: Path) -> None:
    """Questions are shared, gradients added: the same losses."""
    still = {"shared": False, "dropout": 0.0, "max_steps": 4}
    _config(world, tmp_path / "one", **still).train_model()
    run_world(2, tmp_path / "ranks", _train, _config(world, tmp_path / "two", **still))
    one = _losses(tmp_path / "one")
    two = _losses(tmp_path / "two")
    assert one.keys() == two.keys()
    assert list(two.values()) == pytest.approx(list(one.values()), rel=1e-3)
