"""Batches of multi-hop questions: all hops of each, in one of its orders, drawn anew at every visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag.runtime.seeds import generator
from retrievers.examples.batches import Epochs, Int32, Int64, RetrieverBatches
from retrievers.examples.data import TrainingSet
from retrievers.examples.hops import order_of

__all__ = ["HopBatches", "HopEpochs", "IndexedHops", "IndexedHopsBatch"]


class HopEpochs:
    """Which examples every batch holds: all hops of `batch_size` questions; see `Epochs`.

    Args:
        ids: of the examples (`order_of`).
        batch_size, epochs, max_batches, seed: see `Epochs`, in questions.

    Example:
        >>> epochs = HopEpochs(["a#0.0", "a#0.1", "a#1.0", "a#1.1", "b#0.0"], 2)
        >>> sorted(epochs[0].tolist()) in ([0, 1, 4], [2, 3, 4])
        True
    """

    def __init__(
        self,
        ids: Sequence[str],
        batch_size: int,
        *,
        epochs: float = 1.0,
        max_batches: int | None = None,
        seed: int = 13,
    ) -> None:
        orders: dict[str, dict[int, list[int]]] = {}
        for example, name in enumerate(ids):
            question, order, _ = order_of(name)
            orders.setdefault(question, {}).setdefault(order, []).append(example)
        self._orders = [list(found.values()) for found in orders.values()]
        self._epochs = Epochs(
            len(self._orders), batch_size, epochs=epochs, max_batches=max_batches, seed=seed
        )
        self.batch_size, self._seed = self._epochs.batch_size, seed

    def __len__(self) -> int:
        return len(self._epochs)

    def __getitem__(self, step: int) -> Int64:
        """(N,) examples of batch `step`, question by question, in hop order."""
        draw = generator(self._seed, 23, step)
        chosen = [self._orders[question] for question in self._epochs[step].tolist()]
        return np.array([e for orders in chosen for e in orders[draw.integers(len(orders))]], np.int64)


class HopBatches(RetrieverBatches):
    """In-batch and hard negatives of every hop: another hop's passage is a negative unless it comes later.

    Args:
        data: the training set of `hop_examples`.
        examples: which of them each batch holds.
        hard_negatives, mask_false_negatives, seed: see `RetrieverBatches`.
    """

    def __init__(
        self,
        data: TrainingSet,
        examples: HopEpochs,
        *,
        hard_negatives: int,
        mask_false_negatives: bool,
        seed: int,
    ) -> None:
        super().__init__(
            data, batch_size=len(data), hard_negatives=hard_negatives,
            mask_false_negatives=mask_false_negatives, seed=seed,
        )  # fmt: skip
        self.examples: HopEpochs = examples  # type: ignore[assignment]
        self.batch_size = examples.batch_size


@dataclass(frozen=True, slots=True)
class IndexedHopsBatch:
    """N hops of a batch's questions, whose passages are rows of an index.

    Attributes:
        queries: token ids of each.
        targets: (N,) the next passage.
        ignored: (N, G) the question's later passages, -1 in empty places.
    """

    queries: list[Int32]
    targets: Int64
    ignored: Int64


class IndexedHops:
    """The same batches for passages that are not encoded, because an index has their vectors.

    Args:
        data: built with the index's passages as its corpus; every positive is one of them.
        examples: which hops each batch holds.
    """

    def __init__(self, data: TrainingSet, examples: HopEpochs) -> None:
        self.data, self.examples = data, examples
        self.batch_size = examples.batch_size

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, step: int) -> IndexedHopsBatch:
        """Batch `step`."""
        examples = self.examples[step].tolist()
        golds = [self.data.canonical[self.data.positives[example]] for example in examples]
        ignored = np.full((len(golds), max(map(len, golds))), -1, np.int64)
        for row, own in enumerate(golds):
            ignored[row, : len(own) - 1] = own[1:]
        targets = np.array([own[0] for own in golds], np.int64)
        return IndexedHopsBatch([self.data.questions[example] for example in examples], targets, ignored)
