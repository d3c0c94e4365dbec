"""Checkpoints of a run: folders, written whole or not at all, from which it resumes exactly.

checkpoints/step-00001200/
    weights.safetensors     fp32 master weights of the trained parameters
    optimizer.safetensors   AdamW's moments and step counts, keyed by parameter name
    hooks.safetensors       tensors of the recipe's hooks, if there are any
    state.json              step, counters, the best score so far and its step

The newest stay, and those whose scores are the best, since their weights are exported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import replaced_folder
from rag.training.precision import MasterWeights

Tensors = Mapping[str, torch.Tensor]
_NEWEST = 2  # checkpoints that stay whatever their scores


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk, in the folder `path`.

    Raises:
        IncompleteArtifactError: a file that is read is damaged, or missing.
    """

    path: Path

    @property
    def state(self) -> dict[str, Any]:
        """The JSON state in it."""
        return self._read("state.json", lambda file: json.loads(file.read_text(encoding="utf-8")))

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of one file."""
        return self._read(f"{name}.safetensors", load_file)

    def _read(self, name: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        try:
            return read(self.path / name)
        except (SafetensorError, OSError, ValueError) as error:
            raise IncompleteArtifactError(
                f"{self.path / name} is damaged ({error})",
                hint="delete this folder to resume from the one before",
            ) from error


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def complete_checkpoints(folder: Path) -> list[Path]:
    """Folders of the complete checkpoints, oldest first."""
    return sorted(path.parent for path in folder.glob("step-*/state.json"))


def save_checkpoint(
    folder: Path,
    step: int,
    master: MasterWeights,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    hooks: Tensors,
) -> Path:
    """Write the checkpoint of `step` atomically, and delete those that are needed no more.

    Args:
        state: `best_step` in it names the checkpoint with the best score, which is not deleted.
        hooks: tensors of the recipe's hooks.
    """
    moments = {
        f"{name}//{key}": value
        for name, tensor in zip(master.names, master.master, strict=True)
        for key, value in optimizer.state.get(tensor, {}).items()
    }
    files = {"weights": master.state(), "optimizer": moments, "hooks": hooks}
    with replaced_folder(checkpoint_path(folder, step)) as temporary:
        for name, tensors in files.items():
            # a clone each: safetensors refuses tensors that share memory
            cloned = {k: tensor.detach().clone().contiguous() for k, tensor in tensors.items()}
            save_file(cloned, temporary / f"{name}.safetensors")
        (temporary / "state.json").write_text(json.dumps({**state, "step": step}), encoding="utf-8")
    newest = sorted(folder.glob("step-*"))[-_NEWEST:]
    best = [Checkpoint(path).state["best_step"] for path in newest]
    needed = {*newest, *(checkpoint_path(folder, number) for number in best if number is not None)}
    for old in {*folder.glob("step-*")} - needed:
        shutil.rmtree(old, ignore_errors=True)
    return checkpoint_path(folder, step)


def load_checkpoint(checkpoint: Checkpoint, master: MasterWeights, optimizer: torch.optim.Optimizer) -> None:
    """Restore weights and optimiser moments exactly.

    Raises:
        MismatchedArtifactError: if it belongs to another model.
    """
    stored = checkpoint.tensors("weights")
    shapes = [{(k, tuple(t.shape)) for k, t in own.items()} for own in (master.state(), stored)]
    if shapes[0] != shapes[1]:
        raise MismatchedArtifactError(
            f"{checkpoint.path}: holds other parameters than the model (for example "
            f"{sorted(shapes[0] ^ shapes[1])[:3]})",
            hint="use another output folder, or the configuration this run was started with",
        )
    master.load(stored)
    parameters = dict(zip(master.names, master.master, strict=True))
    for entry, value in checkpoint.tensors("optimizer").items():
        name, _, key = entry.partition("//")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)
