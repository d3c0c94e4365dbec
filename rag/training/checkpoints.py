"""Training checkpoints: a folder per step, written whole or not at all, resumed exactly.

checkpoints/step-00001200/
    weights.safetensors     fp32 master weights of the trained parameters
    optimizer.safetensors   AdamW's moments and step counts, keyed by parameter name
    average.safetensors     moving average of the weights, if there is one
    state.json              step, counters, the best score so far, torch's generator state
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_path, remove_temporaries
from rag.training.precision import MasterWeights

__all__ = ["Checkpoint", "latest_checkpoint", "load_checkpoint", "save_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk: its folder and the JSON state in it."""

    path: Path
    state: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read the state of the checkpoint in `path`."""
        return cls(path, json.loads((path / "state.json").read_text(encoding="utf-8")))


def save_checkpoint(
    folder: Path,
    step: int,
    master: MasterWeights,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    average: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Write the checkpoint of `step` atomically and delete all but the `keep` newest."""
    target = folder / f"step-{step:08d}"
    moments: dict[str, torch.Tensor] = {}
    for name, tensor in zip(master.names, master.master, strict=True):
        for key, value in optimizer.state.get(tensor, {}).items():
            moments[f"{name}//{key}"] = value.detach().clone().contiguous()
    if target.exists():
        shutil.rmtree(target)
    with atomic_path(target) as temporary:
        temporary.mkdir()
        weights = {name: tensor.contiguous() for name, tensor in master.state().items()}
        save_file(weights, temporary / "weights.safetensors")
        save_file(moments, temporary / "optimizer.safetensors")
        if average is not None:
            save_file(dict(average), temporary / "average.safetensors")
        generator_state = torch.get_rng_state().tolist()
        (temporary / "state.json").write_text(
            json.dumps({**state, "step": step, "torch_generator": generator_state}), encoding="utf-8"
        )
    for old in sorted(folder.glob("step-*"))[: -max(1, keep)]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in `folder`, or None; leftovers of a killed writer are removed."""
    if not folder.exists():
        return None
    remove_temporaries(folder)
    for path in sorted(folder.glob("step-*"), reverse=True):
        if (path / "state.json").exists():
            return Checkpoint.open(path)
    return None


def load_checkpoint(
    checkpoint: Checkpoint,
    master: MasterWeights,
    optimizer: torch.optim.Optimizer | None,
    average: dict[str, torch.Tensor] | None = None,
) -> None:
    """Put weights, optimiser moments and torch's generator back exactly as they were.

    Args:
        checkpoint: what `latest_checkpoint` found.
        master: receives the weights.
        optimizer: receives the moments, if given.
        average: receives the moving average, if given.

    Raises:
        IncompleteArtifactError: if a file is missing.
        MismatchedArtifactError: if it belongs to another model.
    """
    try:
        weights = load_file(checkpoint.path / "weights.safetensors")
        moments = load_file(checkpoint.path / "optimizer.safetensors")
        averaged = {} if average is None else load_file(checkpoint.path / "average.safetensors")
    except FileNotFoundError as error:
        raise IncompleteArtifactError(
            f"{checkpoint.path}: a file of this checkpoint is missing ({error})",
            hint="delete this folder to resume from the one before",
        ) from error
    shapes = {name: tuple(tensor.shape) for name, tensor in master.state().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != found:
        odd = sorted(set(shapes.items()) ^ set(found.items()))[:3]
        raise MismatchedArtifactError(
            f"{checkpoint.path}: holds other parameters than the model (for example {odd})",
            hint="use another output folder, or the configuration this run was started with",
        )
    master.load(weights)
    if average is not None:
        for name, tensor in average.items():
            tensor.copy_(averaged[name])
    if optimizer is not None:
        for name, tensor in zip(master.names, master.master, strict=True):
            prefix = f"{name}//"
            entries = {k[len(prefix) :]: v for k, v in moments.items() if k.startswith(prefix)}
            if entries:
                optimizer.state[tensor] = {k: value.to(tensor.device) for k, value in entries.items()}
    torch.set_rng_state(torch.tensor(checkpoint.state["torch_generator"], dtype=torch.uint8))
