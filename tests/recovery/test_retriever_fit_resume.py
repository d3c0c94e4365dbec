"""A bi-encoder's training that is killed and resumed has the same loss curve, dropout and cache included."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rag.training.checkpoints import latest_checkpoint
from rag.training.config import OptimConfig, RunConfig
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from rag.training.precision import MasterWeights
from retrievers.examples.batches import RetrieverBatch
from retrievers.training.bi_encoder import BiEncoderModel
from retrievers.training.step import contrastive_step
from tests.worlds import run_world, start_process

STEPS = 6


class Batches:
    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, number: int) -> RetrieverBatch:
        draw = np.random.default_rng(number)

        def texts(count: int) -> list[Any]:
            return [draw.integers(5, 120, draw.integers(3, 12)).astype(np.int32) for _ in range(count)]

        drawn = np.stack([np.arange(4), np.arange(4) * 2 + 1])
        none = np.zeros((4, 8), dtype=bool)
        return RetrieverBatch(texts(4), texts(8), np.arange(4) * 2, none, drawn, np.arange(4))


def train(world: World, folder: Path, out: Path, kill_at: int | None) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    torch.manual_seed(9)
    model = BiEncoderModel.from_folder(
        folder, pooling="mean", normalize=True, question_tokens=16, passage_tokens=16, dropout=0.2,
    )  # fmt: skip
    full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    master = MasterWeights(model.to_compute(torch.bfloat16), full)
    seen = 0

    def loss(module: torch.nn.Module, batch: RetrieverBatch) -> Loss:
        nonlocal seen
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        return contrastive_step(model, batch, world, 2)

    def evaluate(module: torch.nn.Module) -> dict[str, float]:
        return {"norm": float(sum(p.detach().float().square().sum() for p in module.parameters()))}

    settings = (
        OptimConfig(learning_rate=0.002, accumulate=2, ema=0.5),
        RunConfig(log_every_steps=3, save_every_s=0.0, validate_every_steps=2, select_by="norm"),
    )
    result = fit(model, master, Batches(), loss, *settings, out, evaluate=evaluate, world=world)
    assert result.best_step is not None
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in record.items() if k != "seconds"} for record in records]
    total = float(sum(weight.double().sum() for weight in result.weights.values()))
    return [*kept, {"weights": total, "best": result.best_step, "loss": result.loss}]


@pytest.fixture(scope="module")
def whole(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(World.single("cpu"), tiny_bert, tmp_path_factory.mktemp("whole"), None)


@pytest.mark.parametrize("kill_at", [1, 7, 10])
def test_killed_anywhere(tiny_bert: Path, tmp_path: Path, whole: list[dict[str, Any]], kill_at: int) -> None:
    arguments = (World.single("cpu"), tiny_bert, tmp_path, kill_at)
    child = start_process(train, *arguments)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    checkpoint = latest_checkpoint(tmp_path / "checkpoints")
    assert (0 if checkpoint is None else checkpoint.state["step"]) == kill_at // 2
    assert train(World.single("cpu"), tiny_bert, tmp_path, None) == whole
    assert [record["step"] for record in whole if "loss" in record and "step" in record] == [3, 6]


def test_two_processes_resume_as_two(tiny_bert: Path, tmp_path: Path) -> None:
    def halves(world: World) -> list[dict[str, Any]]:
        return train(world, tiny_bert, tmp_path / "two", None)

    first = run_world(2, tmp_path / "a", halves)
    for path in sorted((tmp_path / "two" / "checkpoints").iterdir())[-1:]:  # back to the one before the last
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    again = run_world(2, tmp_path / "b", halves)
    assert first == again
    assert first[0] == first[1]
