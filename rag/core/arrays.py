"""The types of NumPy arrays, by the type of their elements."""

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
