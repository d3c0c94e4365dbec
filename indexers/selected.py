"""The rows that a search may return."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rag.core.arrays import Bool, Int64, UInt8


class Selection:
    """Rows of an index that a search may return; all statistics stay those of the whole index.

    Args:
        mask: (N,) bool, one entry per row.

    Example:
        >>> chosen = Selection(np.array([True, False, True, True]))
        >>> len(chosen), chosen.rows.tolist(), chosen.runs.tolist()
        (3, [0, 2, 3], [[0, 1], [2, 4]])
    """

    def __init__(self, mask: Bool) -> None:
        self.mask = np.ascontiguousarray(mask, dtype=bool)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total(self) -> int:
        """Number of rows N of the index."""
        return len(self.mask)

    @cached_property
    def rows(self) -> Int64:
        """Selected rows in order."""
        return np.flatnonzero(self.mask)

    @cached_property
    def runs(self) -> Int64:
        """(R, 2): first row and row after the last of each run of selected rows."""
        edges = np.flatnonzero(np.diff(self.mask.astype(np.int8), prepend=0, append=0))
        return edges.reshape(-1, 2)

    @cached_property
    def bits(self) -> UInt8:
        """The mask with eight rows per byte, the first in the lowest bit."""
        return np.packbits(self.mask, bitorder="little")
