"""A model stored as its difference from another that is installed: a few megabytes in place of ninety.

Every matrix of the network is that of the base plus a product of two thin matrices, the best one of its rank;
vectors, such as biases, are stored whole. The folder opens like any other wherever the base is installed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rag.core.errors import ArtifactError
from rag.core.files import check_target, replaced_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

DIFFERENCE_FILE = "difference.safetensors"
_LEFT, _RIGHT, _WHOLE = ".left", ".right", ".whole"
_BASE, _SHA256 = "base", "base_sha256"
_WEIGHTS = shutil.ignore_patterns("*.safetensors")


def is_difference(folder: Path) -> bool:
    """Whether the folder's weights are a difference from another model's."""
    return (folder / DIFFERENCE_FILE).is_file() and not (folder / "model.safetensors").is_file()


def stated_base(folder: Path) -> tuple[str, str]:
    """Name of the model that the folder's weights are a difference from, and sha256 of its weights.

    Raises:
        ArtifactError: the file is damaged, or names no model.
    """
    from safetensors import SafetensorError, safe_open

    file = folder / DIFFERENCE_FILE
    try:
        with safe_open(file, framework="pt") as tensors:
            stated = tensors.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{file} cannot be read: {error}", hint="copy or download it again") from error
    if not stated.get(_BASE) or not stated.get(_SHA256):
        raise ArtifactError(f"{file} does not state the model that it is a difference from")
    return stated[_BASE], stated[_SHA256]


def add_difference(base: Mapping[str, Tensor], difference: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The base's weights plus the difference.

    Args:
        base: tensors by name.
        difference: for a matrix (m, n) `NAME.left` (m, r) and `NAME.right` (r, n), whose product is added;
            for any other tensor `NAME.whole`.

    Raises:
        ArtifactError: the base lacks a tensor of the difference.
    """
    state = dict(base)
    for name, tensor in difference.items():
        plain, _, side = name.rpartition(".")
        if plain not in state:
            raise ArtifactError(f"the difference names {plain!r}, which its base has not")
        if f".{side}" == _RIGHT:
            continue
        change = tensor.float()
        if f".{side}" == _LEFT:
            change = change @ difference[plain + _RIGHT].float()
        state[plain] = (state[plain].float() + change).to(state[plain].dtype)
    return state


def low_rank_difference(
    base: Mapping[str, Tensor], changed: Mapping[str, Tensor], rank: int
) -> dict[str, Tensor]:
    """What `add_difference` needs to get from `base` to `changed`, in float16.

    Tensors that did not change are left out.

    Source: Eckart and Young 1936: the first singular vectors are the best approximation of their rank.
    """
    import torch

    stored: dict[str, Tensor] = {}
    for name, before in base.items():
        change = changed[name].float() - before.float()
        if not change.any():
            continue
        if change.ndim != 2 or min(change.shape) <= rank:
            stored[name + _WHOLE] = change.half()
            continue
        left, values, right = torch.linalg.svd(change, full_matrices=False)
        root = values[:rank].sqrt()
        stored[name + _LEFT] = (left[:, :rank] * root).half().contiguous()
        stored[name + _RIGHT] = (root[:, None] * right[:rank]).half().contiguous()
    return stored


def write_difference(folder: Path, out: Path, *, rank: int = 64, base: str = "all-MiniLM-L6-v2") -> Path:
    """Write an encoder as a folder with its difference from `base`.

    Args:
        folder: the encoder, with its tokenizer and settings, which are copied.
        out: must not exist, or be empty.
        rank: columns of the thin matrices.
        base: name of the model that its training started from.

    Raises:
        ArtifactError: they are not networks of the same shape.
    """
    from rag.runtime.model_files import backbone_state, model_folder, weight_files, weights_sha256

    start = model_folder(base)
    before, after = backbone_state(start), backbone_state(folder)
    wanted = {name: tensor for name, tensor in before.items() if name in after}
    if not wanted or any(after[name].shape != tensor.shape for name, tensor in wanted.items()):
        raise ArtifactError(f"{folder} was not trained from {base}: its weights have other names or shapes")
    stated = {_BASE: base, _SHA256: weights_sha256(weight_files(start))}
    _write(folder, out, DIFFERENCE_FILE, low_rank_difference(wanted, after, rank), stated)
    return out


def write_whole(folder: Path, out: Path) -> Path:
    """Write a folder whose weights are a difference as one with all its weights, which others open too.

    Args:
        out: must not exist, or be empty.
    """
    from rag.runtime.model_files import backbone_state

    _write(folder, out, "model.safetensors", backbone_state(folder), {"format": "pt"})
    return out


def _write(folder: Path, out: Path, name: str, tensors: dict[str, Tensor], stated: dict[str, str]) -> None:
    """The folder's other files with these weights, as a whole or not at all."""
    from safetensors.torch import save_file

    check_target(out, folder=True, is_new=True)
    with replaced_folder(out) as temporary:
        shutil.copytree(folder, temporary, ignore=_WEIGHTS, dirs_exist_ok=True)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, temporary / name, stated)
        (temporary / name).chmod(0o644)
