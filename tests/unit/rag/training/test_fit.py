"""The fit loop: accumulation, averages, selection, hooks, what it writes."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rag.core.errors import ConfigError, IncompleteArtifactError, RagError
from rag.core.files import read_json
from rag.runtime.seeds import generator
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from rag.training.run import train
from rag.training.run_log import read_metrics
from tests.support.messages import refusal
from tests.worlds import toy_method

Pair = tuple[torch.Tensor, torch.Tensor]


class ToyConfig(TrainConfig):
    recipe = "toy"
    measured = ("mrr",)
    name: str = "toy"


class Batches:
    """(x, y) of a linear task; `group` consecutive batches of 4 rows are one batch of 4·group
    rows.
    """

    def __init__(self, count: int, group: int = 1) -> None:
        self.count = count
        self.group = group

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Pair:
        parts = [self._small(number * self.group + i) for i in range(self.group)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    def _small(self, number: int) -> Pair:
        x = torch.from_numpy(generator(5, number).normal(size=(4, 3))).float()
        return x, x @ torch.tensor([[1.0], [-2.0], [0.5]])


def mean_squares(module: torch.nn.Module, batch: Pair) -> Loss:
    return Loss(
        torch.nn.functional.mse_loss(module(batch[0]), batch[1]), len(batch[0]), batch[0].numel()
    )


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)


def run(
    out: Path, batches: Batches | None = None, model: torch.nn.Module | None = None, **changes: Any
) -> tuple[int, dict[str, torch.Tensor]]:
    model = linear() if model is None else model
    evaluate = partial(changes.pop("evaluate"), model) if "evaluate" in changes else None
    settings = ToyConfig(**{"out": out, "learning_rate": 0.05, "log_every_steps": 1, **changes})
    method = toy_method(model, batches or Batches(8), partial(mean_squares, model), evaluate)
    return fit(method, settings, World())[:2]


def test_accumulated_batches_are_one_large_batch(tmp_path: Path) -> None:
    steps, many = run(tmp_path / "many", Batches(12), accumulate=3)
    same, large = run(tmp_path / "large", Batches(4, group=3))
    assert steps == same == 4
    for name, weight in large.items():
        torch.testing.assert_close(many[name], weight)
    last = [read_metrics(tmp_path / name / "metrics.jsonl")[-1] for name in ("many", "large")]
    assert last[0]["loss"] == pytest.approx(last[1]["loss"], rel=1e-5)
    assert last[0]["examples"] == 48


def test_parts_learn_at_their_own_rates_and_frozen_ones_not_at_all(tmp_path: Path) -> None:
    def two() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))

    def moved(out: Path, frozen: str = "", **rates: float) -> dict[str, float]:
        model = two()
        start = two().state_dict()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (frozen and name.startswith(frozen)))
        run(
            out,
            Batches(1),
            model=model,
            learning_rates=rates,
            schedule="constant",
            weight_decay=0.0,
        )
        return {
            name: float((p - start[name]).abs().max()) for name, p in model.state_dict().items()
        }

    both = moved(
        tmp_path / "both", **{"1": 1e-3, "1.bias": 1e-4}
    )  # Adam's first step is the rate itself
    expected = {"0.weight": 0.05, "0.bias": 0.05, "1.weight": 1e-3, "1.bias": 1e-4}
    assert both == pytest.approx(expected, rel=1e-2)
    assert moved(tmp_path / "frozen", frozen="0")["0.weight"] == 0.0
    with refusal(ConfigError):
        moved(tmp_path / "wrong", head=1e-3)


def test_a_share_of_the_start_is_scored_and_returned_and_survives_a_resume(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    def evaluate(module: torch.nn.Module) -> dict[str, float]:
        seen.append(module.weight.detach().clone())  # type: ignore[operator,union-attr]
        return {"score": 0.0}

    begun = linear().weight.detach().clone()
    last = run(tmp_path / "last")[1]["weight"]
    for _ in range(2):  # the second resumes at the end of the first
        mixed = run(tmp_path / "mixed", start_share=0.25, evaluate=evaluate)[1]["weight"]
        torch.testing.assert_close(mixed, 0.25 * begun + 0.75 * last)
    assert len(seen) == 1
    assert torch.equal(seen[0], mixed)


def test_the_best_weights_are_returned(tmp_path: Path) -> None:
    shown = iter([0.1, 0.5, 0.4, math.nan, 0.45])
    at: list[torch.Tensor] = []

    def evaluate(module: torch.nn.Module) -> dict[str, float]:
        at.append(module.weight.detach().clone())  # type: ignore[operator,union-attr]
        return {"mrr": next(shown), "other": 1.0}

    settings = {"validate_every_steps": 1, "select_by": "mrr", "evaluate": evaluate}
    for _ in range(2):  # trained, and finished
        step, weights = run(tmp_path, Batches(5), **settings)
        assert (step, len(at)) == (2, 5)
        assert torch.equal(weights["weight"], at[1])
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert saved == ["step-00000002", "step-00000005"]  # the best, and the last that was due
    (tmp_path / "checkpoints/step-00000002/weights.safetensors").unlink()
    with refusal(IncompleteArtifactError):
        run(tmp_path, Batches(5), **settings)


def test_a_run_whose_figures_are_no_numbers_ends(tmp_path: Path) -> None:
    model = linear()
    figures = {"mrr": math.nan, "nll": math.inf}
    method = toy_method(model, Batches(2), partial(mean_squares, model), lambda: figures)
    train(ToyConfig(out=tmp_path), lambda world: method, "model")
    written = read_json(tmp_path / "figures.json")["figures"]
    assert written == {"mrr": None, "nll": None}
    assert "| mrr | nan |" in (tmp_path / "model/README.md").read_text()


def test_named_parts_of_the_loss_are_averaged_into_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(batch: Pair) -> Loss:
        errors = (model(batch[0]) - batch[1]).flatten()
        near = errors[:2].square().sum()
        far = errors[2:].square().sum()
        return Loss(
            near + far,
            4,
            4,
            parts={"loss/near": near, "loss/far": far, "positive": int(errors[0] > 0)},
        )

    model = linear()
    settings = ToyConfig(out=tmp_path, learning_rate=0.05, accumulate=2, log_every_steps=2)
    with caplog.at_level("INFO", logger="rag.training"):
        fit(toy_method(model, Batches(8), loss), settings, World())
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert len(records) == 2
    for record in records:
        assert record["loss"] == pytest.approx(record["loss/near"] + record["loss/far"])
        assert record["positive"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert f"loss/near {records[-1]['loss/near']:.5g}" in caplog.text


def test_a_loss_that_is_not_finite_is_said(tmp_path: Path) -> None:
    model = linear()
    with torch.no_grad():
        model.weight.fill_(math.inf)
    with refusal(RagError):
        run(tmp_path, model=model)


class Network(torch.nn.Linear):
    def to_compute(self, dtype: torch.dtype) -> None:
        self.to(dtype)


def test_a_network_that_no_gradient_reaches_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.ModuleDict({"used": Network(3, 1), "unused": Network(3, 1)})

    def loss(batch: Pair) -> Loss:
        x, y = batch
        return Loss(((model["used"](x) - y) ** 2).mean(), len(x), x.numel())

    fit(toy_method(model, Batches(2), loss), ToyConfig(out=tmp_path), World())
    warnings = [record.args for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [("unused",)]
