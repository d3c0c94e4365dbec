"""The tensors of a weights file: safetensors, or a `.bin` file of torch, of which nothing but
tensors is read.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag.core.errors import ArtifactError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

COPY = "copy or download it again"
_TENSORS_ALONE = (
    "give a file that holds the tensors of a network by their names and nothing else, as "
    "transformers' save_pretrained writes it"
)


def file_tensors(file: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a file whose names begin with `prefix`, mapped from the file where possible.

    Raises:
        ArtifactError: the file is missing or damaged, or holds something else than tensors.
    """
    if file.suffix == ".bin":
        stored = _bin_tensors(file)
        return {name: tensor for name, tensor in stored.items() if name.startswith(prefix)}
    with _opened(file, "pt") as opened:
        names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name: opened.get_tensor(name) for name in names}


def file_arrays(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a file as arrays, in a process that may have no torch; see `file_tensors`."""
    if file.suffix == ".bin":
        return {name: tensor.float().numpy() for name, tensor in _bin_tensors(file).items()}
    with _opened(file, "numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def file_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a file's tensors by name; of safetensors the header alone is read.

    Raises:
        ArtifactError: see `file_tensors`.
    """
    if file.suffix == ".bin":
        return {name: tuple(tensor.shape) for name, tensor in _bin_tensors(file).items()}
    with _opened(file, "numpy") as opened:
        names = list(opened.keys())
        return {name: tuple(opened.get_slice(name).get_shape()) for name in names}


@contextmanager
def _opened(file: Path, framework: str) -> Iterator[Any]:
    """An open safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework=framework) as opened:
            yield opened
    except (SafetensorError, OSError, TypeError) as error:
        raise ArtifactError(f"{file} cannot be read: {error}", hint=COPY) from error


def _bin_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file of `torch.save`.

    Such a file is a pickle. torch reads it with `weights_only`: by an unpickler that builds tensors
    and plain containers, and that refuses every other object before any of its code could run.
    """
    import torch

    try:
        # Files of torch before 1.6 are no archives, and cannot be mapped.
        is_archive = zipfile.is_zipfile(file)
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=is_archive)
    except Exception as error:  # damaged bytes make an unpickler raise errors of any kind
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused is None:
            reason = str(error).partition("\n")[0]
            raise ArtifactError(f"{file} cannot be read: {reason}", hint=COPY) from error
        raise ArtifactError(
            f"{file} holds a {refused[1]}, and nothing but tensors is read from a .bin file; "
            "no code of it was run",
            hint=_TENSORS_ALONE,
        ) from error
    entries = content if isinstance(content, dict) else {type(content).__name__: content}
    others = [name for name, value in entries.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ArtifactError(
            f"{file} holds {len(others)} entries that are no tensors, the first is {others[0]}",
            hint=_TENSORS_ALONE,
        )
    return {str(name): tensor.detach() for name, tensor in entries.items()}
