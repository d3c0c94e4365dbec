"""Weights as int8 with one scale per output row: a quarter of fp32's size, dequantised when loaded.

In the safetensors file a matrix `name` is stored as `name` (int8) and `name.scale` (float32, one per row);
vectors (biases, norms) stay float32, and so do matrices named in `keep`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from rag.core.errors import ArtifactError
from rag.core.files import atomic_path
from rag.runtime.model_files import read_tensors

_SUFFIX = ".scale"


def quantize(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a (R, C) float matrix to int8 steps of max|row| / 127.

    Returns:
        (R, C) int8 and (R,) float32 scales; |matrix − int8·scale| ≤ scale / 2 everywhere.

    Example:
        >>> codes, scale = quantize(torch.tensor([[1.0, -0.5, 0.0]]))
        >>> codes.tolist()
        [[127, -64, 0]]
    """
    scale = row_scale(matrix)
    codes = (matrix.float() / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
    return codes, scale


def row_scale(matrix: torch.Tensor) -> torch.Tensor:
    """The int8 step of each row of a (R, C) matrix, (R,) float32: max|row| / 127."""
    least, most = matrix.float().aminmax(dim=1)
    return torch.maximum(-least, most).clamp_min(1e-12) / 127.0


def rounded(matrix: torch.Tensor) -> torch.Tensor:
    """A float32 matrix as `load_int8` gives it after `save_int8`."""
    scale = row_scale(matrix)[:, None]
    return (matrix / scale).round_().mul_(scale)


def save_int8(state: Mapping[str, torch.Tensor], path: Path, *, keep: Collection[str] = ()) -> None:
    """Write a state dict to one safetensors file, atomically; matrices become int8 unless named in `keep`."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.ndim == 2 and name not in keep:
            tensors[name], tensors[name + _SUFFIX] = quantize(tensor)
        elif tensor.is_floating_point():
            tensors[name] = tensor.float().contiguous()
    with atomic_path(path) as temporary:
        # one metadata entry only: the library writes several in random order, and bytes must be reproducible
        save_file(tensors, temporary, metadata={"quantization": "int8-per-row"})
        temporary.chmod(0o644)


def load_int8(path: Path) -> dict[str, torch.Tensor]:
    """Read a file of `save_int8` back as float32 tensors.

    Raises:
        ArtifactError: if the file is missing, damaged, or an int8 matrix has no scale.
    """
    tensors = read_tensors(path)
    state: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX) in tensors:
            continue
        if tensor.dtype == torch.int8:
            if name + _SUFFIX not in tensors:
                raise ArtifactError(f"{path}: the int8 matrix {name} has no scale")
            tensor = tensor.float() * tensors[name + _SUFFIX][:, None]
        state[name] = tensor
    return state
