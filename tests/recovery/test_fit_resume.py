"""A training run that is killed and resumed ends with the same losses and the same weights."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError, RagError
from rag.runtime.seeds import generator
from rag.training.checkpoints import latest_checkpoint
from rag.training.fit import FitSettings, Loss, fit
from rag.training.precision import MasterWeights
from tests.worlds import start_process

STEPS = 12


class Batches:
    """(x, y) of a random linear task by step."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = generator(5, step)
        x = torch.from_numpy(draw.normal(size=(16, 4))).float()
        return x, x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])


def train(
    out: Path, kill_at: int | None = None, width: int = 8
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))
    seen = {"steps": 0}

    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Loss:
        if kill_at is not None and seen["steps"] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen["steps"] += 1
        return Loss(torch.nn.functional.mse_loss(module(batch[0]), batch[1]), len(batch[0]), batch[0].numel())

    settings = FitSettings(learning_rate=0.05, log_every_steps=1, save_every_s=0.0)
    result = fit(model, MasterWeights(model), Batches(), loss, settings, out)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records], result.weights


def test_kill_and_resume_change_nothing(tmp_path: Path) -> None:
    losses, weights = train(tmp_path / "whole")
    child = start_process(train, tmp_path / "killed", 7)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    checkpoint = latest_checkpoint(tmp_path / "killed" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.state["step"] == 7
    again, resumed = train(tmp_path / "killed")
    assert again == losses
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    losses, weights = train(tmp_path)
    again, same = train(tmp_path)
    assert again == losses
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(MismatchedArtifactError, match="other parameters"):
        train(tmp_path, width=6)
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    (newest.path / "optimizer.safetensors").unlink()
    with pytest.raises(IncompleteArtifactError, match=newest.path.name):
        train(tmp_path)


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)

    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Loss:
        return Loss(module(batch[0]).sum() * float("nan"), 1, 1)

    with pytest.raises(RagError, match="step 0"):
        fit(model, MasterWeights(model), Batches(), loss, FitSettings(learning_rate=0.1), tmp_path)
