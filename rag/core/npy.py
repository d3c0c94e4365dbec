"""NumPy files: written atomically, mapped into memory, never unpickled."""

import mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike, NDArray

from rag.core.errors import ArtifactError
from rag.core.files import atomic_path


def save_npy(path: Path, values: NDArray[Any]) -> None:
    """Write `values` atomically as `.npy`.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.save(file, np.ascontiguousarray(values), allow_pickle=False)


def load_npy(path: Path, *, dtype: DTypeLike, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Map a `.npy` file read-only and check its header.

    Args:
        shape: expected shape; None accepts any.

    Raises:
        ArtifactError: the file, named in the message, is missing, truncated, in another format, or of another
            shape or type.
    """
    problem = ""
    try:
        mapped: Any = open_memmap(path, mode="r")
        if mapped.dtype != np.dtype(dtype) or (shape is not None and mapped.shape != shape):
            problem = f"holds {mapped.dtype} {mapped.shape}, expected {np.dtype(dtype)} {shape or ''}"
    except (ValueError, OSError, EOFError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged: {error}"
    if problem:
        raise ArtifactError(f"{path} {problem}", hint="restore it or rebuild the index")
    # A plain array over the same pages: indexing a memmap object costs several times more.
    return np.asarray(mapped)


def advise(
    values: NDArray[Any],
    advice: Literal["MADV_RANDOM", "MADV_WILLNEED"],
    rows: NDArray[np.integer[Any]] | None = None,
) -> None:
    """Say how a mapped array will be read: row by row, or all of it, or some rows (n,), soon.

    A disk reads pages side by side several times as fast as one by one, each when it is missed.
    """
    base: Any = getattr(values.base, "_mmap", None)
    if base is None:
        return
    if rows is None:
        base.madvise(getattr(mmap, advice))
        return
    start, size = values.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data, values.strides[0]
    for first in (start + rows * size).tolist():
        page = first - first % mmap.PAGESIZE
        base.madvise(getattr(mmap, advice), page, first + size - page)
