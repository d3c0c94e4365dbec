"""Processes that gather, sum and share; one process alone does nothing of it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from rag.core.errors import ResourceError
from rag.training.distributed import World
from tests.support.messages import refusal
from tests.worlds import run_world


def exchange(world: World) -> dict[str, Any]:
    import_module("torch.distributed.nn")  # as a library may; the group's threads end nevertheless
    rank = world.rank
    torch.manual_seed(rank)
    sums = [torch.full((3,), float(rank)), torch.full((2, 2), 10.0 * rank), torch.tensor(1.0)]
    world.sum_(sums)
    transposed = torch.arange(6.0).reshape(2, 3).T
    world.sum_([transposed])
    moved = [torch.full((2,), float(rank + 7))]
    world.broadcast_(moved)
    world.barrier()
    return {
        "gathered": world.all_gather(
            torch.full((rank, 2), float(rank), requires_grad=True)
        ).tolist(),
        "sums": [tensor.tolist() for tensor in sums],
        "transposed": transposed.tolist(),
        "moved": moved[0].tolist(),
        "object": world.broadcast_object({"rank": rank, "name": "é", "score": float("inf")}),
        "nothing": world.broadcast_object(None),
        "main": world.is_main,
    }


def test_three_processes(tmp_path: Path) -> None:
    results = run_world(3, tmp_path, exchange)
    for result in results:
        assert result["gathered"] == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        assert result["sums"] == [[3.0] * 3, [[30.0, 30.0], [30.0, 30.0]], 3.0]
        assert result["transposed"] == (3 * torch.arange(6.0).reshape(2, 3).T).tolist()
        assert result["moved"] == [7.0, 7.0]
        assert result["object"] == {"rank": 0, "name": "é", "score": float("inf")}
        assert result["nothing"] is None
    assert [result["main"] for result in results] == [True, False, False]


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with refusal(ResourceError), World.joined("cpu"):
        pass
