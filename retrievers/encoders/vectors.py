"""Vectors of texts, one a text or several: what towers return and scores are computed of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of n texts end to end, T in all.

    Attributes:
        values: (T, D).
        lengths: (n,) int64, how many each text has; None: one each, so that T is n.

    Example:
        >>> hidden = torch.arange(8.0).view(2, 2, 2)
        >>> several = Vectors.of_tokens(hidden, torch.tensor([[True, True], [True, False]]))
        >>> len(several), several.values.tolist()
        (2, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
        >>> several.take([1, 0]).lengths.tolist()
        [1, 2]
    """

    values: Tensor
    lengths: Tensor | None = None

    @classmethod
    def of_tokens(cls, values: Tensor, kept: Tensor) -> Vectors:
        """Of (n, L, D), the vectors where `kept` (n, L) is True."""
        return cls(values[kept], kept.sum(1))

    @classmethod
    def joined(cls, parts: Sequence[Vectors]) -> Vectors:
        """The texts of all parts, in order."""
        lengths = [part.lengths for part in parts if part.lengths is not None]
        return cls(torch.cat([part.values for part in parts]), torch.cat(lengths) if lengths else None)

    def __len__(self) -> int:
        return len(self.values) if self.lengths is None else len(self.lengths)

    def take(self, rows: Sequence[int]) -> Vectors:
        """Those of some texts, in the order of `rows`."""
        if self.lengths is None:
            return Vectors(self.values[list(rows)])
        parts = self.values.split(self.lengths.tolist())
        chosen = [parts[row] for row in rows]
        return Vectors(torch.cat(chosen) if chosen else self.values[:0], self.lengths[list(rows)])

    def padded(self) -> tuple[Tensor, Tensor]:
        """(n, L, D) with zeros behind each text's vectors, and (n, L) bool where there is one."""
        lengths = self.values.new_ones(len(self), dtype=torch.int64) if self.lengths is None else self.lengths
        kept = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]  # (n, L)
        filled = self.values.new_zeros((*kept.shape, self.values.shape[-1]))
        return filled.masked_scatter(kept[:, :, None], self.values), kept
