"""Batches larger than memory: texts go through an encoder in chunks, and their gradients are exact.

1. Every chunk is encoded; without the cache its graph is kept, with the cache only the vectors are.
2. The loss of the whole batch is a function of all vectors: it gives one gradient per vector.
3. Chunk by chunk, the graph (kept, or computed a second time) turns those into parameter gradients.

Dropout draws from a seed of each chunk's own, so the second computation repeats the first exactly, and no
state of a random generator has to be carried.

Source:
    Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (GradCache).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rag.runtime.fast.packing import plan_batches

__all__ = ["ChunkedEncoding"]

ItemT = TypeVar("ItemT")


@dataclass(slots=True)
class _Chunk:
    """Rows that are encoded together, the seed of their dropout, and their vectors while a graph is kept."""

    rows: list[int]
    seed: int
    vectors: Tensor | None = None


class ChunkedEncoding:
    """The vectors of many texts, computed in chunks, and the way back from their gradients.

    Args:
        encode: texts of one chunk → vectors (n, D), differentiable in the encoder's parameters.
        texts: whatever `encode` takes.
        lengths: of the texts; texts of similar length share a chunk.
        chunk_rows: most texts in a chunk.
        chunk_tokens: most tokens in a chunk.
        keep_graphs: True computes each chunk once and holds all graphs; False is the gradient cache.
        seed: of the dropout; chunk k draws from `seed` and the number of its first text.
        first: number of `texts[0]` in the batch of all processes.
        device: what `encode` computes on.

    Attributes:
        vectors: (n, D), detached, in the order of the texts.
    """

    def __init__(
        self,
        encode: Callable[[list[ItemT]], Tensor],
        texts: Sequence[ItemT],
        lengths: Sequence[int],
        *,
        chunk_rows: int,
        chunk_tokens: int,
        keep_graphs: bool,
        seed: int,
        first: int = 0,
        device: str = "cpu",
    ) -> None:
        self._device = torch.device(device)
        self._run = lambda chunk: encode([texts[row] for row in chunk.rows])
        plan = plan_batches(lengths, max_rows=chunk_rows, max_tokens=chunk_tokens)
        self._chunks = [_Chunk(rows, _mix(seed, first + min(rows))) for rows in plan]
        keep = torch.is_grad_enabled() and (keep_graphs or len(plan) == 1)
        parts = []
        for chunk in self._chunks:
            with torch.set_grad_enabled(keep), self._dropout_of(chunk):
                vectors = self._run(chunk)  # (n, D)
            chunk.vectors = vectors if keep else None
            parts.append(vectors.detach())
        order = torch.tensor([row for chunk in self._chunks for row in chunk.rows], device=self._device)
        stacked = torch.cat(parts)
        self.vectors = torch.empty_like(stacked).index_copy_(0, order, stacked)

    def backward(self, gradient: Tensor, after_chunk: Callable[[], None]) -> None:
        """Add the parameters' gradients, given the loss's gradient with respect to `vectors`.

        Args:
            gradient: (n, D).
            after_chunk: called after every backward pass, to move gradients on before they add up in bf16.
        """
        for chunk in self._chunks:
            vectors = chunk.vectors
            if vectors is None:
                with torch.enable_grad(), self._dropout_of(chunk):
                    vectors = self._run(chunk)
            chunk.vectors = None  # frees the graph right after its backward pass
            vectors.backward(gradient[chunk.rows])
            del vectors
            after_chunk()

    @contextmanager
    def _dropout_of(self, chunk: _Chunk) -> Iterator[None]:
        """Global generators start from the chunk's seed inside, and go on as before after it."""
        cuda = self._device.type == "cuda"
        with torch.random.fork_rng(devices=[self._device] if cuda else [], enabled=True):
            torch.manual_seed(chunk.seed)
            yield


def _mix(seed: int, number: int) -> int:
    """A seed for each number: neighbours must not share streams, so the bits are mixed (splitmix64).

    Example:
        >>> _mix(1, 0) != _mix(1, 1) != _mix(2, 0)
        True
    """
    mask = (1 << 64) - 1
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
