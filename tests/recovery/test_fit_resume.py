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
from rag.training.checkpoints import complete_checkpoints
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.fit import FitHooks, Loss, fit
from rag.training.run_log import read_metrics
from tests.support.messages import refusal
from tests.worlds import killed_at, run_world, toy_method

STEPS = 12


class Batches:
    """(x, y) of a random linear task by step."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = generator(5, step)
        x = torch.from_numpy(draw.normal(size=(16, 4))).float()
        return x, x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])


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
        self.slow = {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}
        self.queue = torch.zeros(6)

    def before_step(self, step: int) -> None:
        for name, parameter in self.model.named_parameters():
            self.slow[name].lerp_(parameter.detach(), 0.1)
        self.queue = torch.cat([self.queue[1:], self.slow["0.weight"].mean()[None]])

    def extra_state(self) -> Mapping[str, torch.Tensor]:
        return {
            "queue": self.queue,
            **{f"slow.{name}": tensor for name, tensor in self.slow.items()},
        }

    def load_extra_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.queue = tensors["queue"]
        self.slow = {name: tensors[f"slow.{name}"] for name in self.slow}


def train(
    out: Path,
    width: int = 8,
    device: str = "cpu",
    world: World | None = None,
    save_every_s: float = 3.5,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """With hooks' tensors and dropout; a checkpoint is due every fourth step."""
    torch.set_num_threads(1)
    torch.manual_seed(
        0 if world is None else world.rank
    )  # all begin with the weights of the main process
    layers = torch.nn.Linear(4, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1)
    model = torch.nn.Sequential(*layers).to(device)
    clock = Clock()
    hooks = Momentum(model)

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> Loss:
        clock.now += 1.0
        x, y = (tensor.to(device) for tensor in batch)
        value = torch.nn.functional.mse_loss(model(x) + hooks.queue.sum().to(device), y)
        return Loss(value if world is None else value / world.size, len(x), x.numel())

    config = TrainConfig(
        out=out, name="toy", learning_rate=0.05, log_every_steps=1, save_every_s=save_every_s
    )
    with patch.object(fit_module, "time", clock):
        method = toy_method(model, Batches(), loss, None, hooks, shares=True)
        weights = fit(method, config, world or World(device=device)).weights
    return [record["loss"] for record in read_metrics(out / "metrics.jsonl")], weights


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
        ),
    ],
)
def test_kill_and_resume_change_nothing(tmp_path: Path, device: str) -> None:
    losses, weights = train(tmp_path / "whole", device=device)
    killed_at(torch.nn.functional, "mse_loss", 7, train, tmp_path / "killed", 8, device)
    assert [path.name for path in complete_checkpoints(tmp_path / "killed")] == ["step-00000004"]
    for _ in range(2):  # resumed; finished, and not trained again
        again, resumed = train(tmp_path / "killed", device=device)
        assert again == losses
        assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    train(tmp_path)
    with refusal(MismatchedArtifactError):
        train(tmp_path, width=6)
    newest = complete_checkpoints(tmp_path)[-1]
    (newest / "optimizer.safetensors").unlink()
    with refusal(IncompleteArtifactError):
        train(tmp_path)


def train_shared(world: World, out: Path) -> list[float]:
    return train(out, world=world, save_every_s=0.5)[0]


def test_every_process_goes_on_with_its_own_random_numbers(tmp_path: Path) -> None:
    first = run_world(2, tmp_path / "a", train_shared, tmp_path / "run")
    shutil.rmtree(complete_checkpoints(tmp_path / "run")[-1])
    assert run_world(2, tmp_path / "b", train_shared, tmp_path / "run") == first
