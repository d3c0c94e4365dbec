"""Checkpoints of a run, and the weights with the best held-out score.

A checkpoint is a folder, written whole or not at all, from which a run resumes exactly:

checkpoints/step-00001200/
    weights.safetensors     fp32 master weights of the trained parameters
    optimizer.safetensors   AdamW's moments and step counts, keyed by parameter name
    buffers.safetensors     the model's buffers, if it has any that are part of its state
    hooks.safetensors       tensors of the recipe's hooks, if there are any
    generators.safetensors  states of torch's random generators, one row per process
    best.safetensors        the best weights so far, if there are any (a hard link where that is possible)
    state.json              step, counters, the best score so far
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from rag.core.errors import ConfigError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_path, link_or_copy, replaced_folder
from rag.training.distributed import World
from rag.training.precision import MasterWeights

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk: its folder and the JSON state in it."""

    path: Path
    state: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read the state of the checkpoint in `path`.

        Raises:
            IncompleteArtifactError: it is damaged.
        """
        file = path / "state.json"
        with _named(file):
            return cls(path, json.loads(file.read_text(encoding="utf-8")))

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of one file; none if this checkpoint has no such file.

        Raises:
            IncompleteArtifactError: the file is damaged.
        """
        path = self.path / f"{name}.safetensors"
        with _named(path):
            return load_file(path) if path.exists() else {}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the damaged file of a checkpoint, and say how to go on without it."""
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise IncompleteArtifactError(
            f"{path} is damaged ({error})", hint="delete this folder to resume from the one before"
        ) from error


def save_checkpoint(
    folder: Path,
    step: int,
    model: torch.nn.Module,
    master: MasterWeights,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    tensors: Mapping[str, Tensors],
    keep: int = 2,
    add: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Write the checkpoint of `step` atomically and delete all but the `keep` newest.

    Args:
        tensors: file name → more tensors; a file is written if there are any.
        add: puts more files into the folder it is given.
    """
    target = folder / f"step-{step:08d}"
    moments: dict[str, torch.Tensor] = {}
    for name, tensor in zip(master.names, master.master, strict=True):
        for key, value in optimizer.state.get(tensor, {}).items():
            moments[f"{name}//{key}"] = value.detach()
    with replaced_folder(target) as temporary:
        _save(temporary / "weights.safetensors", master.state())
        _save(temporary / "optimizer.safetensors", moments)
        for name, more in {"buffers": _buffers(model), **tensors}.items():
            if more:
                _save(temporary / f"{name}.safetensors", more)
        add(temporary)
        (temporary / "state.json").write_text(json.dumps({**state, "step": step}), encoding="utf-8")
    for old in sorted(folder.glob("step-*"))[: -max(1, keep)]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def _save(path: Path, tensors: Tensors) -> None:
    # a clone each: safetensors refuses tensors that share memory
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, path)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint in `folder`, or None; any process may look."""
    complete = complete_checkpoints(folder)
    return Checkpoint.open(complete[-1]) if complete else None


def complete_checkpoints(folder: Path) -> list[Path]:
    """Folders of the complete checkpoints, oldest first; the process that writes them may delete any."""
    return sorted(path.parent for path in folder.glob("step-*/state.json"))


def load_checkpoint(
    checkpoint: Checkpoint,
    model: torch.nn.Module,
    master: MasterWeights,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Restore weights, buffers and optimiser moments exactly.

    Raises:
        IncompleteArtifactError: if a file is missing.
        MismatchedArtifactError: if it belongs to another model.
    """
    missing = [
        name for name in ("weights", "optimizer") if not (checkpoint.path / f"{name}.safetensors").exists()
    ]
    if missing:
        raise IncompleteArtifactError(
            f"{checkpoint.path}: {missing[0]}.safetensors of this checkpoint is missing",
            hint="delete this folder to resume from the one before",
        )
    weights, moments, buffers = (checkpoint.tensors(name) for name in ("weights", "optimizer", "buffers"))
    own = _buffers(model)
    for wanted, found in ((master.state(), weights), (own, buffers)):
        shapes = [{(name, tuple(tensor.shape)) for name, tensor in t.items()} for t in (wanted, found)]
        if shapes[0] != shapes[1]:
            raise MismatchedArtifactError(
                f"{checkpoint.path}: holds other parameters than the model (for example "
                f"{sorted(shapes[0] ^ shapes[1])[:3]})",
                hint="use another output folder, or the configuration this run was started with",
            )
    master.load(weights)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(buffers[name])
    for name, tensor in zip(master.names, master.master, strict=True):
        prefix = f"{name}//"
        entries = {k[len(prefix) :]: v for k, v in moments.items() if k.startswith(prefix)}
        if entries:
            optimizer.state[tensor] = {k: value.to(tensor.device) for k, value in entries.items()}


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that are part of the model's state."""
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def generator_states(world: World) -> dict[str, torch.Tensor]:
    """States of torch's generators, (processes, bytes) each; every process calls this."""
    states = {"cpu": torch.get_rng_state()}
    if world.device.startswith("cuda"):
        states["cuda"] = torch.cuda.get_rng_state(world.device)
    return {k: world.all_gather(state.to(world.device)[None]).cpu() for k, state in states.items()}


def restore_generators(checkpoint: Checkpoint, world: World) -> None:
    """Restore torch's random generators; processes that the saved run did not have get those of the first."""
    # a clone: torch crashes on a row of a larger tensor
    row = {
        k: rows[world.rank if world.rank < len(rows) else 0].clone()
        for k, rows in checkpoint.tensors("generators").items()
    }
    torch.set_rng_state(row["cpu"])
    if "cuda" in row and world.device.startswith("cuda"):
        torch.cuda.set_rng_state(row["cuda"], world.device)


class Selection:
    """Keeps the best weights of a run in a file, and stops a run that no longer improves.

    Args:
        path: safetensors file for the best weights; its metadata say the step.
        name: score to select by; "" keeps nothing: the last weights count.
        patience: validations in a row without a better score after which the run ends; 0 never ends it.

    Attributes:
        step: step of the best weights, None before the first validation.
    """

    def __init__(self, path: Path, name: str, *, lowest: bool, patience: int) -> None:
        self.path, self.name = path, name
        self._sign = -1.0 if lowest else 1.0
        self._patience = patience
        self._waited = 0
        self.step: int | None = None
        self.score = math.nan

    @property
    def stopped(self) -> bool:
        """Whether the run should end."""
        return bool(self._patience) and self._waited >= self._patience

    def update(
        self, step: int, scores: Mapping[str, float], weights: Mapping[str, torch.Tensor], *, write: bool
    ) -> bool:
        """Compare a validation's scores with the best so far, and keep the weights if they are better.

        Returns:
            Whether they are the best so far. A score that is not a number never is.

        Raises:
            ConfigError: there is no score of that name.
        """
        if not self.name:
            return False
        if self.name not in scores:
            raise ConfigError(
                f"weights are selected by {self.name!r}, but a validation measures {', '.join(scores)}",
                hint="set select_by to one of these",
            )
        score = float(scores[self.name])
        if not (self.step is None or self._sign * score > self._sign * self.score) or math.isnan(score):
            self._waited += 1
            return False
        self.step, self.score, self._waited = step, score, 0
        if write:
            with atomic_path(self.path) as temporary:
                kept = {name: tensor.contiguous() for name, tensor in weights.items()}
                save_file(kept, temporary, metadata={"step": str(step)})  # of several the order is random
        return True

    def best(self, last: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The best weights, or `last` where nothing was selected.

        Raises:
            IncompleteArtifactError: the file is missing, or holds the weights of another step.
        """
        if self.step is None:
            return dict(last)
        with self._open() as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def keep(self, folder: Path) -> None:
        """Copy the best weights into a checkpoint's folder, since later steps may overwrite `path`."""
        if self.step is not None:
            link_or_copy(self.path, folder / self.path.name)

    def restore(self, folder: Path) -> None:
        """Restore the best weights that `keep` copied into a checkpoint's folder.

        Raises:
            IncompleteArtifactError: they are not there, and `path` holds none or those of another step.
        """
        kept = folder / self.path.name
        if self.step is None:
            return
        if kept.exists():
            with atomic_path(self.path) as temporary:
                link_or_copy(kept, temporary)
        with self._open():
            pass

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with safe_open(self.path, framework="pt") as file:
                found = (file.metadata() or {}).get("step")
                if found != str(self.step):
                    raise IncompleteArtifactError(
                        f"{self.path} holds the weights of step {found}, expected those of step {self.step}",
                        hint="train again in another folder",
                    )
                yield file
        except (OSError, SafetensorError) as error:
            raise IncompleteArtifactError(
                f"{self.path}, the best weights (of step {self.step}), cannot be read ({error})",
                hint="train again in another folder, or without select_by",
            ) from error

    def state(self) -> dict[str, Any]:
        """The state to save in a checkpoint."""
        return {"step": self.step, "score": None if self.step is None else self.score, "waited": self._waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.step, self._waited = state["step"], state["waited"]
        self.score = math.nan if state["score"] is None else state["score"]
