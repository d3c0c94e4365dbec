"""Every batch of a retriever's training run, by step: in-batch and hard negatives; other positives
masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from indexers.passages import PassageStore
from rag.core.arrays import Bool, Int32, Int64, ranges
from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.runtime.seeds import generator
from retrievers.examples.data import ExampleTable

_FEW_STEPS = 10  # shorter runs teach next to nothing
ItemT = TypeVar("ItemT")

# labels of a passage for a question
IGNORED, OTHER, NEGATIVE, POSITIVE = range(-1, 3)


@dataclass(frozen=True, slots=True)
class RetrieverBatch:
    """B questions and P passages.

    Attributes:
        questions: alone or with passages.
        labels: (B, P) int8, what each passage is to each question: its `POSITIVE`, a `NEGATIVE`
            that was drawn for it, an `OTHER` passage of the batch, or `IGNORED`, for example
            because it is another positive of the question.
        targets: (B, P) float32 targets of the passages in each question's list, NaN elsewhere; None
            for losses that learn from positives.
    """

    questions: Sequence[Query]
    passages: Sequence[Passage]
    labels: Tensor
    targets: Tensor | None = None

    def to(self, device: str) -> RetrieverBatch:
        """The batch, with its tensors on a device."""
        targets = None if self.targets is None else self.targets.to(device)
        return replace(self, labels=self.labels.to(device), targets=targets)


class Epochs:
    """Which examples every batch of a run holds: each epoch is a permutation, cut into batches of
    one size.

    The remainder of an epoch, less than one batch, is left out of it.

    Example:
        >>> epochs = Epochs(7, 2, epochs=2)
        >>> len(epochs), sorted(np.concatenate([epochs[step] for step in range(3)]).tolist())[-1] < 7
        (6, True)
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        epochs: float = 1.0,
        max_batches: int | None = None,
        seed: int = 13,
    ) -> None:
        self.batch_size = min(batch_size, count)
        self.per_epoch = count // self.batch_size
        self._length = max(1, round(epochs * self.per_epoch))
        if max_batches is not None:
            self._length = min(self._length, max_batches)
        self._count = count
        self.seed = seed
        self._order: tuple[int, Int64] = (-1, np.zeros(0, np.int64))

    @classmethod
    def of(
        cls, config: Any, items: Any, batch_size: int | None = None, *, once: bool = False
    ) -> Self:
        """The epochs of a run, as its configuration says; those of a validation have every example
        once.

        Raises:
            ConfigError: a batch is to have more examples than there are, and than is usual.
        """
        if once:
            return cls(items, config.batch_size, seed=config.seed)
        size = batch_size or config.batch_size
        made = cls(
            items, size, epochs=config.epochs, max_batches=config.max_batches, seed=config.seed
        )
        usual = type(config).model_fields["batch_size"].default
        if made.batch_size < size and size > usual:
            raise ConfigError(
                f"batch_size is {size}, and there are {made.batch_size} examples to train on",
                hint="lower batch_size",
            )
        if made.batch_size < size or (len(made) < _FEW_STEPS and config.max_batches is None):
            message = (
                "%d steps of %d examples: raise epochs (now %g) or lower batch_size (now %d), for example "
                "--set epochs=10 --set batch_size=16"
            )
            get_logger(__name__).warning(message, len(made), made.batch_size, config.epochs, size)
        return made

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, step: int) -> Int64:
        """(B,) examples of batch `step`.

        Raises:
            IndexError: the run has fewer batches.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"batch {step} of a run of {len(self)}")
        epoch, number = divmod(step, self.per_epoch)
        if self._order[0] != epoch:
            order = generator(self.seed, 21, epoch).permutation(self._count).astype(np.int64)
            self._order = (epoch, order)
        return self._order[1][number * self.batch_size : (number + 1) * self.batch_size]


class RetrieverBatches:
    """The batches of a run. `self[step]` depends on the arguments, the step and the negatives in
    use alone.

    Every question brings one of its positives and up to `hard_negatives` of its negatives, drawn
    anew at each visit. A passage that several questions bring is encoded once.

    Args:
        data: the training examples; each has a positive.
        hard_negatives: number of negatives per question, drawn without replacement.
        mask_false_negatives: ignore a question's other positives; if off, nothing is ignored, and a
            passage that several questions bring is encoded several times.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering",
        section 3.2.

    Note:
        DPR masks nothing: another question's positive counts as negative even where it is the same
        passage. Its code takes a question's first positive at every visit; here any of them is
        drawn.
    """

    def __init__(
        self,
        data: ExampleTable,
        examples: Epochs,
        *,
        hard_negatives: int = 1,
        mask_false_negatives: bool = True,
    ) -> None:
        self.data = data
        self.examples = examples
        self.batch_size = examples.batch_size
        self.hard_negatives = hard_negatives
        self.mask_false_negatives = mask_false_negatives
        self._mined: tuple[Int32, PassageStore] | None = None
        has_hard = hard_negatives > 0 and data.has_negatives
        if hard_negatives > 0 and not has_hard:
            get_logger(__name__).warning(
                "no example has any of the %d hard_negatives", hard_negatives
            )
        if self.batch_size == 1 and not has_hard:
            raise ConfigError(
                "a batch, or all that is held out, is one question without hard negatives",
                hint="raise batch_size or validation_fraction, or mine negatives with `rag mine`",
            )

    def __len__(self) -> int:
        return len(self.examples)

    def use_negatives(self, rows: Int32, corpus: PassageStore) -> None:
        """Draw from newly mined negatives from the next batch on.

        Args:
            rows: (Q, K) rows of the corpus for each example, hardest first, then -1; an example
                without any keeps those of its file.
        """
        self._mined = rows, corpus

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`; raises IndexError if the run has fewer."""
        numbers = self.examples[step]
        examples = self.data.take(numbers)
        seed = self.examples.seed
        right = self._positives(examples, generator(seed, 24, step))
        lists = self._negatives(numbers, examples)
        owners, negatives = _draw(lists, self.hard_negatives, generator(seed, 22, step))
        passages = [*right, *self._texts(negatives)]
        columns = np.arange(len(passages))
        if self.mask_false_negatives:
            passages, columns = _distinct(passages)
        positives = columns[: len(numbers)]
        labels = np.full((len(numbers), len(passages)), OTHER, np.int8)
        labels[owners, columns[len(numbers) :]] = NEGATIVE
        labels[self._ignored(numbers, examples, passages, positives)] = IGNORED
        labels[np.arange(len(numbers)), positives] = POSITIVE
        queries = [example.query for example in examples]
        return RetrieverBatch(queries, passages, torch.from_numpy(labels))

    def _positives(self, examples: Sequence[Example], draw: np.random.Generator) -> list[Passage]:
        """A positive of each example: of several any, drawn anew at each visit."""
        return _draw([example.positives for example in examples], 1, draw)[1]

    def _negatives(self, numbers: Int64, examples: Sequence[Example]) -> list[list[Passage | int]]:
        """Each example's negatives: rows of those that were mined, or the passages of its file."""
        lists: list[list[Passage | int]] = [
            [n.passage for n in example.negatives] for example in examples
        ]
        if self._mined is not None:
            mined = (rows[rows >= 0].tolist() for rows in self._mined[0][numbers])
            lists = [own or others for own, others in zip(mined, lists, strict=True)]
        return lists

    def _texts(self, negatives: Sequence[Passage | int]) -> list[Passage]:
        rows = [negative for negative in negatives if isinstance(negative, int)]
        mined = iter(() if self._mined is None else self._mined[1].get_many(rows))
        return [next(mined) if isinstance(negative, int) else negative for negative in negatives]

    def _ignored(
        self,
        numbers: Int64,
        examples: Sequence[Example],
        passages: Sequence[Passage],
        positives: Int64,
    ) -> Bool:
        """(B, P) the passages that count neither for a question nor against it."""
        ignored = np.zeros((len(examples), len(passages)), bool)
        if self.mask_false_negatives:
            columns = {(p.title, p.text): column for column, p in enumerate(passages)}
            for number, example in enumerate(examples):
                for passage in example.positives:
                    column = columns.get((passage.title, passage.text), positives[number])
                    ignored[number, column] = column != positives[number]
        return ignored


class TargetBatches:
    """The batches of a run that learns float targets: each question with a list of passages."""

    def __init__(
        self, data: ExampleTable, examples: Epochs, *, per_question: int | None = None
    ) -> None:
        self.data = data
        self.examples = examples
        self.batch_size = examples.batch_size
        self.per_question = per_question

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`; raises IndexError if the run has fewer."""
        numbers = self.examples[step]
        examples = self.data.take(numbers)
        lists = [[c for c in example.candidates if c.target is not None] for example in examples]
        owners, listed = _draw(lists, self.per_question, generator(self.examples.seed, 23, step))
        passages, columns = _distinct([candidate.passage for candidate in listed])
        targets = np.full((len(numbers), len(passages)), np.nan, np.float32)
        targets[owners, columns] = [candidate.target for candidate in listed]
        queries = [example.query for example in examples]
        labels = torch.full(targets.shape, OTHER, dtype=torch.int8)
        return RetrieverBatch(queries, passages, labels, torch.from_numpy(targets))


BatchMaker = Callable[..., RetrieverBatches | TargetBatches]
"""Configuration, examples, and `once=`, whether they are validated with → the batches."""


def _draw(
    lists: Sequence[Sequence[ItemT]], most: int | None, draw: np.random.Generator
) -> tuple[Int64, list[ItemT]]:
    """At most `most` items of each list, in random order within it, and the number of each one's
    list.
    """
    owners = np.repeat(np.arange(len(lists)), [len(items) for items in lists])
    order = np.lexsort((draw.random(len(owners)), owners))  # shuffled within each list
    if most is not None:
        order = order[ranges(0, np.bincount(owners, minlength=len(lists))) < most]
    flat = [item for items in lists for item in items]
    return owners[order], [flat[place] for place in order.tolist()]


def _distinct(passages: Sequence[Passage]) -> tuple[list[Passage], Int64]:
    """Every passage once, in their order, and for each where in it it stands."""
    first: dict[tuple[str, str], Passage] = {}
    for passage in passages:
        first.setdefault((passage.title, passage.text), passage)
    columns = {content: column for column, content in enumerate(first)}
    return list(first.values()), np.array([columns[p.title, p.text] for p in passages], np.int64)
