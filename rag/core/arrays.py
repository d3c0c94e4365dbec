"""The types of NumPy arrays, by the type of their elements; sequences end to end in one array."""

import numpy as np
from numpy.typing import NDArray

Bool = NDArray[np.bool_]
Float16 = NDArray[np.float16]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]


def ranges(starts: Int64 | int, lengths: Int64) -> Int64:
    """The numbers start, start + 1, … of ranges with these lengths (n,), end to end.

    From 0 they are the place of each element in its own sequence; from the sequences' starts in a flat array,
    the places of their elements there.

    Example:
        >>> ranges(0, np.array([2, 0, 3])).tolist(), ranges(np.array([5, 9]), np.array([2, 1])).tolist()
        ([0, 1, 0, 1, 2], [5, 6, 9])
    """
    before: Int64 = np.cumsum(lengths) - lengths
    numbers: Int64 = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return numbers
