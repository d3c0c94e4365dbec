"""Every batch of a retriever's training run, by step: in-batch and hard negatives; other positives
masked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indexers.passages import PassageStore
from rag.core.arrays import Int32, Int64, ranges
from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.runtime.seeds import Stream, generator
from retrievers.examples.data import ExampleTable

_FEW_STEPS = 10  # shorter runs teach next to nothing
Labels = NDArray[np.int8]

# Labels of a passage for a question.
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

    Args:
        keeps_rest: an epoch has every example, in batches of at most `batch_size` that differ by
            one example; otherwise the remainder of an epoch, less than one batch, is left out.

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
        keeps_rest: bool = False,
    ) -> None:
        self.batch_size = min(batch_size, count)
        # Examples of an epoch.
        self._n_used = count
        if not keeps_rest:
            self._n_used -= count % self.batch_size
        self.per_epoch = -(-self._n_used // self.batch_size)
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
            return cls(items, config.batch_size, seed=config.seed, keeps_rest=True)
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
            get_logger(__name__).warning(
                "%d steps of %d examples: raise epochs (now %g) or lower batch_size (now %d), for example "
                "epochs=10, batch_size=16",
                len(made),
                made.batch_size,
                config.epochs,
                size,
            )
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
            draw = generator(self.seed, Stream.EPOCH, epoch)
            self._order = (epoch, draw.permutation(self._count).astype(np.int64))
        begin = number * self._n_used // self.per_epoch
        end = (number + 1) * self._n_used // self.per_epoch
        return self._order[1][begin:end]


class EpochBatches(ABC):
    """The batches of a run or a validation by step."""

    epochs: Epochs

    @property
    def batch_size(self) -> int:
        """Examples of a batch."""
        return self.epochs.batch_size

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[RetrieverBatch]:
        return map(self.__getitem__, range(len(self)))

    @abstractmethod
    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`; raises IndexError if there are fewer."""


@dataclass(eq=False)
class RetrieverBatches(EpochBatches):
    """The batches of a run. `self[step]` depends on the arguments, the step and the negatives in
    use alone.

    Every question brings one of its positives and up to `hard_negatives` of its negatives, drawn
    anew at each visit. A passage that several questions bring is encoded once.

    Attributes:
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

    data: ExampleTable
    epochs: Epochs
    _: KW_ONLY
    hard_negatives: int = 1
    mask_false_negatives: bool = True

    def __post_init__(self) -> None:
        self._mined: tuple[Int32, PassageStore] | None = None
        if self.hard_negatives > 0 and not self.data.has_negatives:
            get_logger(__name__).warning(
                "none of %d examples has any of the %d hard_negatives",
                len(self.data),
                self.hard_negatives,
            )

    def use_negatives(self, rows: Int32, corpus: PassageStore) -> None:
        """Draw from newly mined negatives from the next batch on.

        Args:
            rows: (Q, K) rows of the corpus for each example, hardest first, then -1; an example
                without any keeps those of its file.
        """
        self._mined = (rows, corpus)

    def __getitem__(self, step: int) -> RetrieverBatch:
        numbers = self.epochs[step]
        queries = self.data.queries(numbers)
        positives = self.data.rows_of(numbers, "positive")
        draw = generator(self.epochs.seed, Stream.POSITIVES, step)
        drawn = self._draw_positives(positives, draw)
        draw = generator(self.epochs.seed, Stream.NEGATIVES, step)
        owners, negatives = self._draw_negatives(numbers, draw)
        passages = [*self.data.passages(drawn), *negatives]
        columns = np.arange(len(passages))  # of the positives, then of the negatives
        if self.mask_false_negatives:
            passages, columns = distinct(passages)
        of_positives = columns[: len(numbers)]
        labels = np.full((len(numbers), len(passages)), OTHER, np.int8)
        labels[owners, columns[len(numbers) :]] = NEGATIVE
        if self.mask_false_negatives:
            self._ignore_positives(labels, queries, positives, passages)
        self._ignore(labels, numbers, of_positives)
        labels[np.arange(len(numbers)), of_positives] = POSITIVE
        return RetrieverBatch(queries, passages, torch.from_numpy(labels))

    def _draw_positives(self, lists: Sequence[Int64], draw: np.random.Generator) -> Int64:
        """The row of a positive of each example: of several any, drawn anew at each visit."""
        return _draw(lists, 1, draw)[1]

    def _draw_negatives(
        self, numbers: Int64, draw: np.random.Generator
    ) -> tuple[Int64, list[Passage]]:
        """Negatives, and the place in the batch of each one's question: those that were mined for
        it, or else those of its file.
        """
        lists = self.data.rows_of(numbers, "hard_negative")
        is_mined = np.zeros(len(numbers), bool)
        if self._mined is not None:
            for number, rows in enumerate(self._mined[0][numbers]):
                if rows.max(initial=-1) >= 0:
                    lists[number] = rows[rows >= 0].astype(np.int64)
                    is_mined[number] = True
        owners, drawn = _draw(lists, self.hard_negatives, draw)
        of_mined = is_mined[owners]
        passages = np.empty(len(drawn), object)
        passages[~of_mined] = self.data.passages(drawn[~of_mined])
        if self._mined is not None:
            passages[of_mined] = self._mined[1].get_many(drawn[of_mined])
        return owners, passages.tolist()

    def _ignore_positives(
        self,
        labels: Labels,
        queries: Sequence[Query],
        positives: Sequence[Int64],
        passages: Sequence[Passage],
    ) -> None:
        """Mark each question's positives, wherever they come from in the batch, as ignored.

        Several examples may be of one question, such as triples of texts.
        """
        columns = {p.content: column for column, p in enumerate(passages)}
        right = defaultdict[Query, list[int]](list)
        for query, rows in zip(queries, positives, strict=True):
            for passage in self.data.passages(rows):
                column = columns.get(passage.content)
                if column is not None:
                    right[query].append(column)
        for question, query in enumerate(queries):
            labels[question, right[query]] = IGNORED

    def _ignore(self, labels: Labels, numbers: Int64, positives: Int64) -> None:
        """Mark further passages as ignored, given the column of each question's positive."""


@dataclass(frozen=True)
class TargetBatches(EpochBatches):
    """The batches of a run that learns float targets: each question with a list of passages."""

    data: ExampleTable
    epochs: Epochs
    per_question: int | None = None

    def __getitem__(self, step: int) -> RetrieverBatch:
        numbers = self.epochs[step]
        lists = self.data.rows_with_targets(numbers)
        draw = generator(self.epochs.seed, Stream.CANDIDATES, step)
        owners, rows = _draw(lists, self.per_question, draw)
        passages, columns = distinct(self.data.passages(rows))
        targets = np.full((len(numbers), len(passages)), np.nan, np.float32)
        targets[owners, columns] = self.data.targets[rows]
        labels = torch.full(targets.shape, OTHER, dtype=torch.int8)
        queries = self.data.queries(numbers)
        return RetrieverBatch(queries, passages, labels, torch.from_numpy(targets))


BatchMaker = Callable[..., EpochBatches]
"""Configuration, examples, and `once=`, whether they are validated with → the batches."""


def has_negatives(batch: RetrieverBatch) -> bool:
    """Whether a question of a batch has a passage beside its positive that is not ignored."""
    return bool(((batch.labels != IGNORED).sum(1) > 1).any())


def check_negatives(batches: EpochBatches, kind: str = "training") -> None:
    """Refuse batches of training or held-out questions of which the first have no negatives.

    Raises:
        ConfigError: none of them has.
    """
    if not any(map(has_negatives, islice(batches, _FEW_STEPS))):
        raise ConfigError(
            f"the first batches of {batches.batch_size} {kind} questions have no negatives",
            hint="raise batch_size, give more questions, hold out more of them (validation_fraction) or "
            "none, mine negatives with `rag mine`, or set mask_false_negatives=false",
        )


def _draw(
    lists: Sequence[Int64], most: int | None, draw: np.random.Generator
) -> tuple[Int64, Int64]:
    """At most `most` numbers of each list, in random order within it, behind the number of each
    one's list.
    """
    owners = np.repeat(np.arange(len(lists)), list(map(len, lists)))
    order = np.lexsort((draw.random(len(owners)), owners))  # shuffled within each list
    if most is not None:
        order = order[ranges(0, np.bincount(owners, minlength=len(lists))) < most]
    return owners[order], np.concatenate(lists)[order]


def distinct(passages: Sequence[Passage]) -> tuple[list[Passage], Int64]:
    """Every passage once, in their order, and for each where in it it stands."""
    first: dict[tuple[str, str], Passage] = {}
    for passage in passages:
        first.setdefault(passage.content, passage)
    columns = {content: column for column, content in enumerate(first)}
    places = [columns[passage.content] for passage in passages]
    return list(first.values()), np.array(places, np.int64)
