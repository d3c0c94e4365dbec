"""Token sequences of different lengths, concatenated: no padding, so no work on padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Concatenated token sequences.

    Attributes:
        token_ids: (T,) int64, all sequences one after the other.
        positions: (T,) int64, position of each token in its sequence, from 0.
        segment_ids: (T,) int64 token types, or None if all are 0.
        groups: (rows, length) of each run of sequences of equal length; attention works run by run.
        seen: (T,) bool, tokens that the others of their sequence attend to; None: all.
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
        positions = torch.arange(ids.shape[1]).expand_as(ids)[real]
        segments = None if types is None or not types.any() else types[real]
        seen = None if seen is None else seen[real].bool()
        return cls(ids[real], positions, segments, _runs(real.sum(1).tolist()), seen)

    def starts(self) -> torch.Tensor:
        """First token of each sequence, (B,) int64."""
        return (self.positions == 0).nonzero()[:, 0]

    def keep(self, rows: torch.Tensor) -> tuple[PackedTokens, torch.Tensor]:
        """The sequences for which `rows` (B,) bool is true, and a mask (T,) bool of their tokens.

        Example:
            >>> ids, mask = torch.tensor([[5, 6], [7, 8], [9, 0]]), torch.tensor([[1, 1], [1, 1], [1, 0]])
            >>> kept, mine = PackedTokens.of(ids, mask).keep(torch.tensor([True, False, True]))
            >>> kept.token_ids.tolist(), kept.groups, mine.tolist()
            ([5, 6, 9], ((1, 2), (1, 1)), [True, True, False, False, True])
        """
        lengths = torch.tensor([length for count, length in self.groups for _ in range(count)])
        mine = rows.repeat_interleave(lengths)
        types = None if self.segment_ids is None else self.segment_ids[mine]
        runs = _runs(lengths[rows].tolist())
        return PackedTokens(self.token_ids[mine], self.positions[mine], types, runs), mine


def _runs(lengths: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return tuple((len(list(run)), length) for length, run in groupby(lengths))


def plan_batches(lengths: Sequence[int], *, max_rows: int, max_tokens: int) -> list[list[int]]:
    """Split rows into batches of similar length, longest first, so that the last batches are the small ones.

    Ties keep their order, so the plan depends on `lengths` alone.

    Args:
        max_tokens: most tokens in a batch, padding not counted; one longer row makes a batch of its own.

    Example:
        >>> plan_batches([3, 9, 3, 5], max_rows=2, max_tokens=10)
        [[1], [3, 0], [2]]
    """
    batches: list[list[int]] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if not batches or len(batches[-1]) >= max_rows or tokens + lengths[row] > max_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(row)
        tokens += lengths[row]
    return batches
