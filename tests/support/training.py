"""What a run of training leaves behind: losses, figures, a card; and gradients of its losses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import Module

from rag.core.files import read_json
from rag.training.fit import Loss
from rag.training.run_log import read_metrics


def records(out: Path, name: str = "loss") -> list[dict[str, Any]]:
    """The records of a run's log that have this value."""
    return [record for record in read_metrics(out / "metrics.jsonl") if name in record]


def falls(out: Path, to: float, over: int = 1) -> bool:
    """Whether the loss of the last steps is below a share of that of the first."""
    values = [record["loss"] for record in records(out)]
    return bool(np.mean(values[-over:]) < to * np.mean(values[:over]))


def figures_of(out: Path) -> dict[str, Any]:
    """The figures of a run's model on what was held out."""
    figures: dict[str, Any] = read_json(out / "figures.json")["figures"]
    return figures


def named(folder: Path, method: str) -> str:
    """The card of a trained encoder, which says how and nothing of this machine."""
    card = (folder / "README.md").read_text()
    assert f"rag train {method}" in card
    assert str(folder.parent) not in card
    return card


def check_trained_alike(one: Path, two: Path) -> None:
    """Fail unless the runs of two encoders took the same steps, to weights that are almost equal."""
    logs = [read_metrics(encoder.parent / "metrics.jsonl") for encoder in (one, two)]
    assert len(logs[0]) == len(logs[1]) > 2
    for alone, shared in zip(*logs, strict=True):
        assert alone.keys() == shared.keys()
        for name in alone.keys() & {"loss", "norm", "eval/nll", "examples", "tokens"}:
            assert shared[name] == pytest.approx(alone[name], rel=1e-4), name
    weights, others = (load_file(encoder / "model.safetensors") for encoder in (one, two))
    for name, tensor in weights.items():
        # The gradient of these is nothing but rounding, of which Adam makes steps of full length.
        if "key.bias" not in name:
            assert (np.abs(tensor - others[name]) < 1e-4).mean() > 0.99, name


def check_parts_sum_to_the_whole(model: Module, whole: Loss, parts: Sequence[Loss]) -> None:
    """Fail unless losses of parts of a batch, as processes divide it, have the whole's gradients."""
    terms = [part.terms or part.examples for part in parts]
    shares = [part.value * count / sum(terms) for part, count in zip(parts, terms, strict=True)]
    assert float(sum(shares).detach()) == pytest.approx(float(whole.value.detach()), abs=1e-5)
    expected, actual = (_gradients(model, values) for values in ([whole.value], shares))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-3)


def _gradients(model: Module, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    for value in values:
        value.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]
