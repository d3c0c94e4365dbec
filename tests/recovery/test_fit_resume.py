"""A training run that is killed and resumed ends with the same losses and the same weights."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError
from rag.runtime.seeds import generator
from rag.training import fit as fit_module
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.fit import FitHooks, Loss, fit
from rag.training.run_folder import complete_checkpoints, read_metrics
from tests.worlds import killed_at, run_world, toy_method

STEPS = 12
STEP = (torch.nn.functional, "mse_loss")  # called once a step


class Batches:
    """(x, y) of a random linear task by step."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = generator(5, step)
        x = torch.from_numpy(draw.normal(size=(16, 4))).float()
        return x, x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])


def train(out: Path, width: int = 8) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> Loss:
        return Loss(torch.nn.functional.mse_loss(model(batch[0]), batch[1]), len(batch[0]), batch[0].numel())

    settings = TrainConfig(out=out, name="toy", learning_rate=0.05, log_every_steps=1, save_every_s=0.0)
    _, weights = fit(toy_method(model, Batches(), loss), settings, World())
    return [record["loss"] for record in read_metrics(out / "metrics.jsonl")], weights


def test_kill_and_resume_change_nothing(tmp_path: Path) -> None:
    losses, weights = train(tmp_path / "whole")
    killed_at(*STEP, 7, train, tmp_path / "killed")
    assert complete_checkpoints(tmp_path / "killed")[-1].name == "step-00000007"
    for _ in range(2):  # resumed; finished, and not trained again
        again, resumed = train(tmp_path / "killed")
        assert again == losses
        assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(MismatchedArtifactError, match="other parameters"):
        train(tmp_path, width=6)
    newest = complete_checkpoints(tmp_path)[-1]
    (newest / "optimizer.safetensors").unlink()
    with pytest.raises(IncompleteArtifactError, match=newest.name):
        train(tmp_path)


class Clock:
    """Time for the loop: a second passes with every step."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Momentum(FitHooks):
    """A slow copy of the model and a queue of its outputs, which the loss reads."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.slow = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        self.queue = torch.zeros(6)

    def before_step(self, step: int) -> None:
        for name, parameter in self.model.named_parameters():
            self.slow[name].lerp_(parameter.detach(), 0.1)
        self.queue = torch.cat([self.queue[1:], self.slow["1.weight"].mean()[None]])

    def extra_state(self) -> Mapping[str, torch.Tensor]:
        return {"queue": self.queue, **{f"slow.{name}": tensor for name, tensor in self.slow.items()}}

    def load_extra_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.queue = tensors["queue"]
        self.slow = {name: tensors[f"slow.{name}"] for name in self.slow}


def train_with_momentum(out: Path, device: str) -> list[float]:
    """Hooks' tensors and dropout, saved every fourth step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    ).to(device)
    hooks, clock = Momentum(model), Clock()

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> Loss:
        clock.now += 1.0
        x, y = (tensor.to(device) for tensor in batch)
        return Loss(torch.nn.functional.mse_loss(model(x) + hooks.queue.sum().to(device), y), len(x), 1)

    settings = TrainConfig(out=out, name="toy", learning_rate=0.05, log_every_steps=1, save_every_s=3.5)
    with patch.object(fit_module, "time", clock):
        fit(toy_method(model, Batches(), loss, None, hooks), settings, World(device=device))
    return [record["loss"] for record in read_metrics(out / "metrics.jsonl")]


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))],
)
def test_hooks_and_dropout_are_resumed(tmp_path: Path, device: str) -> None:
    whole = train_with_momentum(tmp_path / "whole", device)
    killed_at(*STEP, 7, train_with_momentum, tmp_path / "killed", device)
    assert train_with_momentum(tmp_path / "killed", device) == whole


def own_dropout(world: World, out: Path) -> list[float]:
    """Each process draws dropout of its own, from its own seed."""
    torch.manual_seed(world.rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> Loss:
        return Loss(torch.nn.functional.mse_loss(model(batch[0]), batch[1]) / 2, len(batch[0]), 1)

    settings = TrainConfig(out=out, name="toy", learning_rate=0.05, log_every_steps=1, save_every_s=0.0)
    fit(toy_method(model, Batches(), loss), settings, world)
    return [record["loss"] for record in read_metrics(out / "metrics.jsonl")]


def test_every_process_goes_on_with_its_own_random_numbers(tmp_path: Path) -> None:
    first = run_world(2, tmp_path / "a", own_dropout, tmp_path / "run")
    shutil.rmtree(complete_checkpoints(tmp_path / "run")[-1])
    assert run_world(2, tmp_path / "b", own_dropout, tmp_path / "run") == first
