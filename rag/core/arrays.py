"""NumPy arrays: their types, sequences end to end, files that are mapped into memory and never
unpickled.
"""

from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import ArrayLike, NDArray

from rag.core.files import atomic_path, unreadable

Bool = NDArray[np.bool_]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
ScalarT = TypeVar("ScalarT", bound=np.generic)


def ranges(starts: Int64 | int, lengths: Int64) -> Int64:
    """The numbers start, start + 1, … of ranges with these lengths (n,), end to end.

    From 0 they are the place of each element in its own sequence; from the sequences' starts in a
    flat array, the places of their elements there.

    Example:
        >>> ranges(0, np.array([2, 0, 3])).tolist(), ranges(np.array([5, 9]), np.array([2, 1])).tolist()
        ([0, 1, 0, 1, 2], [5, 6, 9])
    """
    before: Int64 = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)


def save_npy(path: Path, values: ArrayLike) -> None:
    """Write `values` atomically as `.npy`."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.save(file, np.ascontiguousarray(values), allow_pickle=False)


def load_npy(
    path: Path, *, dtype: type[ScalarT], shape: tuple[int, ...] | None = None
) -> NDArray[ScalarT]:
    """Map a `.npy` file read-only and check its header.

    Args:
        shape: expected shape; None accepts any.

    Raises:
        ArtifactError: the file, named in the message, is missing, truncated, in another format, or
            of another shape or type.
        ResourceError: the system lacks open files or memory.
    """
    try:
        mapped = open_memmap(path, mode="r")
        if mapped.dtype != dtype or shape not in (None, mapped.shape):
            raise ValueError(
                f"holds {mapped.dtype} {mapped.shape}, expected {np.dtype(dtype)} {shape or ''}"
            )
    except (ValueError, OSError, EOFError) as error:
        raise unreadable(path, error) from error
    # A plain array over the same pages: indexing a memmap object costs several times more.
    return np.asarray(mapped)
