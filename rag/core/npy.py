"""NumPy files: written atomically, mapped into memory, never unpickled."""

import hashlib
import io
import mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rag.core.errors import ArtifactError
from rag.core.files import atomic_path


def save_npy(path: Path, values: NDArray[Any]) -> str:
    """Write `values` atomically as `.npy`; returns the hex sha256 of the file.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    contiguous = np.ascontiguousarray(values)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(contiguous))
    digest = hashlib.sha256(header.getvalue())
    data = contiguous.reshape(-1).view(np.uint8).data
    digest.update(data)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(header.getvalue())
        file.write(data)
    return digest.hexdigest()


def load_npy(path: Path, *, dtype: DTypeLike, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Map a `.npy` file read-only and check its header.

    Args:
        shape: expected shape; None accepts any.

    Raises:
        ArtifactError: the file, named in the message, is missing, truncated, in another format, or of another
            shape or type.
    """
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing", hint="restore it or rebuild the index") from error
    except (ValueError, OSError, EOFError) as error:
        raise ArtifactError(f"{path} is damaged: {error}", hint="restore it or rebuild the index") from error
    fits = isinstance(mapped, np.ndarray) and mapped.dtype == np.dtype(dtype)
    if not fits or (shape is not None and mapped.shape != shape):
        content = f"{mapped.dtype} {mapped.shape}" if isinstance(mapped, np.ndarray) else "an archive"
        raise ArtifactError(
            f"{path} holds {content}, expected {np.dtype(dtype)} {shape or ''}",
            hint="restore it or rebuild the index",
        )
    # A plain array over the same pages: indexing a memmap object costs several times more.
    return np.asarray(mapped)


def advise(
    values: NDArray[Any],
    advice: Literal["MADV_RANDOM", "MADV_WILLNEED"],
    rows: NDArray[np.integer[Any]] | None = None,
) -> None:
    """Say how a mapped array will be read: row by row, or all of it, or some rows (n,), soon.

    A disk reads pages side by side several times as fast as one by one, each when it is missed. Systems
    without such advice go on without.
    """
    base: Any = values
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.base if type(base) is np.ndarray else getattr(base, "_mmap", None)
    if base is None or not hasattr(mmap, advice):
        return
    if rows is None:
        base.madvise(getattr(mmap, advice))
        return
    start, size = values.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data, values.strides[0]
    for first in (start + rows * size).tolist():
        page = first - first % mmap.PAGESIZE
        base.madvise(getattr(mmap, advice), page, first + size - page)
