"""Checkpoints, from which a run resumes exactly.

OUT/checkpoints/step-00001200/    written whole or not at all
    weights.safetensors           fp32 master weights of the trained parameters
    optimizer.safetensors         AdamW's moments and step counts, keyed by parameter name
    hooks.safetensors             tensors of the recipe's hooks, if there are any
    state.json                    step, counters, the best score so far and its step
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rag.core.errors import DataError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_path, read_json
from rag.training.precision import MasterWeights

CHECKPOINTS = "checkpoints"
_STATE = "state.json"
# Checkpoints that stay whatever their scores.
_NEWEST = 2


def checkpoint_path(out: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return out / CHECKPOINTS / f"step-{step:08d}"


def complete_checkpoints(out: Path) -> list[Path]:
    """Folders of a run's complete checkpoints, oldest first."""
    return sorted(path.parent for path in (out / CHECKPOINTS).glob(f"step-*/{_STATE}"))


def read_checkpoint(checkpoint: Path, part: str) -> dict[str, Any]:
    """The JSON values ("state"), or the tensors ("weights", "optimizer", "hooks") of a checkpoint.

    Raises:
        IncompleteArtifactError: their file is damaged, or missing.
    """
    file = checkpoint / (_STATE if part == "state" else f"{part}.safetensors")
    try:
        values: dict[str, Any] = read_json(file) if part == "state" else load_file(file)
    except (SafetensorError, OSError, DataError) as error:
        raise IncompleteArtifactError(
            f"{file} is damaged ({error})", hint="delete this folder to resume from the one before"
        ) from error
    return values


def save_checkpoint(
    out: Path,
    step: int,
    master: MasterWeights,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
) -> None:
    """Write the checkpoint of `step` atomically, and delete those that are needed no more.

    Args:
        state: JSON values, of which `best_step` names the checkpoint with the best score, which is
            not deleted; `hooks` is the state of the recipe's hooks, which may have tensors too.
    """
    moments: dict[str, torch.Tensor] = {}
    for name, tensor in zip(master.names, master.master, strict=True):
        for key, value in optimizer.state.get(tensor, {}).items():
            moments[f"{name}//{key}"] = value
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for name, value in state["hooks"].items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            values[name] = value
    stored = {**state, "hooks": values, "step": step}
    with atomic_path(checkpoint_path(out, step), folder=True) as temporary:
        _save(master.state(), temporary / "weights.safetensors")
        _save(moments, temporary / "optimizer.safetensors")
        _save(tensors, temporary / "hooks.safetensors")
        (temporary / _STATE).write_text(json.dumps(stored), "utf-8")
    _delete_old(out)


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    # Safetensors refuses tensors that share memory: each is cloned.
    cloned = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    save_file(cloned, path)


def _delete_old(out: Path) -> None:
    """Delete all checkpoints but the newest and the best."""
    needed = complete_checkpoints(out)[-_NEWEST:]
    for checkpoint in list(needed):
        best_step = read_checkpoint(checkpoint, "state")["best_step"]
        if best_step is not None:
            needed.append(checkpoint_path(out, best_step))
    for old in {*(out / CHECKPOINTS).glob("step-*")} - {*needed}:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    checkpoint: Path, master: MasterWeights, optimizer: torch.optim.Optimizer
) -> None:
    """Restore weights and optimiser moments exactly.

    Raises:
        MismatchedArtifactError: if it belongs to another model.
    """
    stored = read_checkpoint(checkpoint, "weights")
    differing = _shapes(master.state()) ^ _shapes(stored)
    if differing:
        raise MismatchedArtifactError(
            f"{checkpoint}: holds other parameters than the model (for example "
            f"{sorted(differing)[:3]})",
            hint="use another output folder, or the configuration this run was started with",
        )
    master.load(stored)
    parameters = dict(zip(master.names, master.master, strict=True))
    for entry, value in read_checkpoint(checkpoint, "optimizer").items():
        name, _, key = entry.partition("//")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(tensor.shape)) for name, tensor in tensors.items()}
