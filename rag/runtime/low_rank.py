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
    if not stated.get("base") or not stated.get("base_sha256"):
        raise ArtifactError(f"{file} does not state the model that it is a difference from")
    return stated["base"], stated["base_sha256"]


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
        if side == "right":
            continue
        change = tensor.float()
        if side == "left":
            change = change @ difference[f"{plain}.right"].float()
        state[plain] = (state[plain].float() + change).to(state[plain].dtype)
    return state


def write_whole(folder: Path, out: Path) -> Path:
    """Write a folder whose weights are a difference as one with all its weights, which others open too.

    Args:
        out: must not exist, or be empty.
    """
    from safetensors.torch import save_file

    from rag.runtime.model_files import backbone_state

    check_target(out, folder=True, is_new=True)
    tensors = {name: tensor.contiguous() for name, tensor in backbone_state(folder).items()}
    with replaced_folder(out) as temporary:
        shutil.copytree(folder, temporary, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
        save_file(tensors, temporary / "model.safetensors", {"format": "pt"})
        (temporary / "model.safetensors").chmod(0o644)
    return out
