"""Token sequences of different lengths, concatenated: no padding, so no work on padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Concatenated token sequences.

    Attributes:
        token_ids: (T,) int64, all sequences one after the other.
        positions: (T,) int64, position of each token in its sequence, from 0.
        segment_ids: (T,) int64 token types, or None if all are 0.
        seen: (T,) bool, tokens that the others of their sequence attend to; None: all.
        groups: (rows, length) of each run of sequences of equal length; attention works run by run.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    segment_ids: torch.Tensor | None
    groups: tuple[tuple[int, int], ...]
    seen: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        ids: torch.Tensor,
        mask: torch.Tensor,
        types: torch.Tensor | None = None,
        seen: torch.Tensor | None = None,
    ) -> PackedTokens:
        """The tokens of (n, L) ids, padded on the right, where the mask is 1; `types` and `seen` (n, L) too.

        Sort them by length before: neighbours of equal length are computed together.

        Example:
            >>> ids, mask = torch.tensor([[5, 6], [7, 8], [9, 0]]), torch.tensor([[1, 1], [1, 1], [1, 0]])
            >>> packed = PackedTokens.of(ids, mask)
            >>> packed.groups, packed.positions.tolist(), packed.starts().tolist()
            (((2, 2), (1, 1)), [0, 1, 0, 1, 0], [0, 2, 4])
        """
        real = mask.bool()
        groups = tuple((len(list(run)), length) for length, run in groupby(real.sum(1).tolist()))
        positions = torch.arange(ids.shape[1]).expand_as(ids)[real]
        segments = None if types is None or not types.any() else types[real]
        return cls(ids[real], positions, segments, groups, None if seen is None else seen[real].bool())

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sequence, in order."""
        return [length for rows, length in self.groups for _ in range(rows)]

    def starts(self) -> torch.Tensor:
        """First token of each sequence, (B,) int64."""
        lengths = np.asarray(self.lengths, dtype=np.int64)
        return torch.from_numpy(np.cumsum(lengths) - lengths)

    def keep(self, rows: torch.Tensor) -> tuple[PackedTokens, torch.Tensor]:
        """The sequences for which `rows` (B,) bool is true, and a mask (T,) bool of their tokens.

        Example:
            >>> ids, mask = torch.tensor([[5, 6], [7, 8], [9, 0]]), torch.tensor([[1, 1], [1, 1], [1, 0]])
            >>> kept, mine = PackedTokens.of(ids, mask).keep(torch.tensor([True, False, True]))
            >>> kept.token_ids.tolist(), kept.groups, mine.tolist()
            ([5, 6, 9], ((1, 2), (1, 1)), [True, True, False, False, True])
        """
        mine = rows.repeat_interleave(torch.tensor(self.lengths))
        left = [length for length, kept in zip(self.lengths, rows.tolist(), strict=True) if kept]
        groups = tuple((len(list(run)), length) for length, run in groupby(left))
        types = None if self.segment_ids is None else self.segment_ids[mine]
        return PackedTokens(self.token_ids[mine], self.positions[mine], types, groups), mine


def plan_batches(lengths: Sequence[int], *, max_rows: int, max_tokens: int) -> list[list[int]]:
    """Split rows into batches of similar length, longest first, so that the last batches are the small ones.

    Ties keep their order, so the plan depends on `lengths` alone.

    Args:
        max_tokens: most tokens in a batch, padding not counted; one longer row makes a batch of its own.

    Example:
        >>> plan_batches([3, 9, 3, 5], max_rows=2, max_tokens=10)
        [[1], [3, 0], [2]]
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    current: list[int] = []
    tokens = 0
    for row in order:
        if current and (len(current) >= max_rows or tokens + lengths[row] > max_tokens):
            batches.append(current)
            current, tokens = [], 0
        current.append(row)
        tokens += lengths[row]
    if current:
        batches.append(current)
    return batches
