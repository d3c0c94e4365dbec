"""NumPy files, written atomically, memory-mapped, never unpickled; and the JSON description of a stage."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rag.core.errors import ArtifactError, DataError, IncompleteArtifactError
from rag.core.files import atomic_path, read_json


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


def load_npy(path: Path, *, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a `.npy` file read-only and check its header.

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
    if not isinstance(mapped, np.ndarray) or mapped.dtype != np.dtype(dtype) or mapped.shape != shape:
        content = f"{mapped.dtype} {mapped.shape}" if isinstance(mapped, np.ndarray) else "an archive"
        raise ArtifactError(
            f"{path} holds {content}, expected {np.dtype(dtype)} {shape}",
            hint="restore it or rebuild the index",
        )
    # A plain array over the same pages: indexing a memmap object costs several times more.
    return np.asarray(mapped)


def read_info(path: Path, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Read the JSON file that describes a finished stage; `check` reads the fields that are needed.

    Raises:
        ArtifactError: the file is missing or damaged, or `check` fails on it.
    """
    if not path.is_file():
        raise IncompleteArtifactError(f"{path} is missing", hint="run the stage that builds it")
    try:
        info = dict(read_json(path))
        check(info)
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} is damaged: {error}", hint="rebuild the index") from error
    return info
