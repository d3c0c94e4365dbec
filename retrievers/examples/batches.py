"""Every batch of a retriever's training run, by step: in-batch and hard negatives; other positives masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rag.core.arrays import Bool, Float32, Int32, Int64
from rag.core.errors import ConfigError, DataError
from rag.core.log import get_logger
from rag.core.ragged import ranges
from rag.runtime.seeds import generator
from rag.training.distributed import check_share
from retrievers.examples.data import TrainingSet, gather, replace_lists

BatchTargets = Callable[[Int64, Int64], Float32]
"""Rows (B,) of examples and (P,) of passages in a training set → their targets (B, P)."""


@dataclass(frozen=True, slots=True)
class RetrieverBatch:
    """B questions and P passages as token ids.

    A shard holds some of the texts; `positives`, `ignored` and `drawn` are always those of the whole batch.

    Attributes:
        questions: token ids of this shard's questions (all B in an uncut batch).
        passages: token ids of this shard's passages (all P in an uncut batch).
        positives: (B,) the positive of each question; -1 if it has none, possible only with targets.
        ignored: (B, P) bool, passages left out of a question's denominator: those that are one of its other
            positives.
        drawn: (2, H) question and passage of every negative that was drawn for a question.
        examples: (B,) examples of the training set.
        first_question: position of `questions[0]` in the whole batch.
        first_passage: position of `passages[0]` in the whole batch.
        targets: (B, P) float32 targets of the passages in each question's list, NaN elsewhere; None for
            losses that learn from positives.
    """

    questions: list[Int32]
    passages: list[Int32]
    positives: Int64
    ignored: Bool
    drawn: Int64
    examples: Int64
    first_question: int = 0
    first_passage: int = 0
    targets: Float32 | None = None

    @classmethod
    def of(
        cls, data: TrainingSet, examples: Int64, rows: Int64, positives: Int64,
        ignored: Bool, drawn: Int64, targets: Float32 | None = None,
    ) -> RetrieverBatch:  # fmt: skip
        """Some examples of a training set with the passages in `rows`."""
        questions, passages = data.questions.take(examples), data.passages.take(rows)
        return cls(questions, passages, positives, ignored, drawn, examples, targets=targets)

    @property
    def tokens(self) -> int:
        """Tokens of this shard's texts."""
        return sum(map(len, self.questions)) + sum(map(len, self.passages))

    def shard(self, rank: int, world_size: int) -> RetrieverBatch:
        """The part of one of `world_size` processes: consecutive texts of both kinds, as equal as possible.

        Raises:
            ConfigError: fewer questions or passages than processes.

        Example:
            >>> texts = [np.array([1], np.int32)] * 3
            >>> numbers = np.arange(3)
            >>> drawn = np.zeros((2, 0), np.int64)
            >>> batch = RetrieverBatch(texts, texts, numbers, np.zeros((3, 3), bool), drawn, numbers)
            >>> [len(batch.shard(rank, 2).questions) for rank in range(2)]
            [1, 2]
        """
        questions, passages = self.ignored.shape
        check_share(questions, world_size)
        check_share(passages, world_size, "passages")
        start, stop = questions * rank // world_size, questions * (rank + 1) // world_size
        first, last = passages * rank // world_size, passages * (rank + 1) // world_size
        return replace(
            self,
            questions=self.questions[start:stop],
            passages=self.passages[first:last],
            first_question=start,
            first_passage=first,
        )


_FEW_STEPS = 10  # shorter runs log a warning


class Epochs:
    """Which examples every batch of a run holds: each epoch is a permutation, cut into batches of one size.

    The remainder of an epoch, less than one batch, is left out of it.

    Args:
        count: number of examples.
        batch_size: examples in a batch, over all processes; at most `count`.
        epochs: passes over the data, fractions allowed.
        max_batches: maximum number of batches.
        seed: seed of the permutations, and of all that is drawn for a batch.

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
        wanted = max(1, round(epochs * self.per_epoch))
        self._length = wanted if max_batches is None else min(wanted, max_batches)
        self._count, self.seed = count, seed
        self._order: tuple[int, Int64] = (-1, np.zeros(0, np.int64))

    @classmethod
    def of(cls, config: Any, count: int, batch_size: int | None = None) -> Epochs:
        """The epochs of a run over `count` examples; `batch_size` replaces that of its configuration."""
        wanted, log = batch_size or config.batch_size, get_logger(__name__)
        made = cls(
            count, wanted, epochs=config.epochs, max_batches=config.max_batches,
            seed=config.seed,
        )  # fmt: skip
        if made.batch_size < wanted:
            log.warning("batches hold %d examples, not %d: there are no more", made.batch_size, wanted)
        if len(made) < _FEW_STEPS and config.max_batches is None:
            log.warning(
                "%d training steps teach next to nothing; raise epochs (now %g) or lower "
                "batch_size (now %d), for example: --set epochs=10 --set batch_size=16",
                len(made), config.epochs, wanted,
            )  # fmt: skip
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
    """The batches of a run. `self[step]` depends on the arguments, the step and the negatives in use alone.

    Every question brings one of its positives and up to `hard_negatives` of its negatives, drawn anew at each
    visit. A passage that several questions bring is encoded once.

    Args:
        data: the training set; every example has a positive.
        examples: which of them each batch holds.
        hard_negatives: number of negatives per question, drawn without replacement.
        mask_false_negatives: see `RetrieverBatch.ignored`; if off, nothing is ignored, and a passage that
            several questions bring is encoded several times.
        targets: makes `RetrieverBatch.targets`; without it batches have none.

    Raises:
        ConfigError: a batch would hold a single passage.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering", section 3.2.

    Note:
        DPR masks nothing: another question's positive counts as negative even where it is the same passage.
        Its code takes a question's first positive at every visit; here any of them is drawn.
    """

    def __init__(
        self,
        data: TrainingSet,
        examples: Epochs,
        *,
        hard_negatives: int = 1,
        mask_false_negatives: bool = True,
        targets: BatchTargets | None = None,
    ) -> None:
        self.data, self.examples, self.batch_size = data, examples, examples.batch_size
        self.hard_negatives, self._targets = hard_negatives, targets
        self.mask_false_negatives = mask_false_negatives
        self._negatives = data.negatives
        self._check_negatives()

    def __len__(self) -> int:
        return len(self.examples)

    def _check_negatives(self) -> None:
        has_hard = self.hard_negatives > 0 and len(self._negatives.flatten()) > 0
        if self.hard_negatives > 0 and not has_hard:
            get_logger(__name__).warning(
                "hard_negatives is %d, but no example has any: training on in-batch negatives alone",
                self.hard_negatives,
            )
        if self.batch_size == 1 and not has_hard:
            raise ConfigError(
                "a batch, or all that is held out, is one question without hard negatives, so "
                "that its positive has no negatives",
                hint="raise batch_size or validation_fraction, or mine negatives with `rag mine` and set "
                "hard_negatives",
            )

    def use_negatives(self, lists: pa.ListArray, version: str) -> None:
        """Draw from other negatives from the next batch on.

        Args:
            lists: passage rows of each example, best first; examples without rows keep those of the file.
            version: version of the negatives, for messages.

        Raises:
            DataError: a row that is not in the passage table.
        """
        rows, values = len(self.data.passages), lists.flatten().to_numpy()
        if len(lists) != len(self.data):
            raise DataError(f"negatives for {len(lists)} examples, expected {len(self.data)}")
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < rows:
            raise DataError(
                f"negatives {version!r} name passage {int(values.max())}, but there are {rows}",
                hint="mine over the passages that the training set was built with",
            )
        self._negatives = replace_lists(self.data.negatives, lists)
        self._check_negatives()

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`.

        Raises:
            IndexError: the run has fewer batches.
            ConfigError: no question of the batch has a negative.
        """
        examples = self.examples[step]
        positives = self._positives(step, examples)  # (B,)
        negatives, owners = gather(self._negatives, examples)
        taken = _drawn(owners, self.hard_negatives, generator(self.examples.seed, 22, step), len(examples))
        rows, owners = np.concatenate([positives, negatives[taken]]), owners[taken]
        columns = np.arange(len(rows))
        if self.mask_false_negatives:
            rows, columns = _distinct(rows, self.data.canonical)
        places, drawn = columns[: len(examples)], np.stack([owners, columns[len(examples) :]])
        ignored = self._ignored(examples, rows, places)
        targets = None if self._targets is None else self._targets(examples, rows)
        batch = RetrieverBatch.of(self.data, examples, rows, places, ignored, drawn, targets)
        if len(rows) - batch.ignored.sum(axis=1).min() < 2:
            raise ConfigError(
                f"batch {step} ({len(examples)} questions, {len(rows)} passages): no question has a negative",
                hint="raise batch_size, mine negatives with `rag mine`, or set mask_false_negatives=false",
            )
        return batch

    def _positives(self, step: int, examples: Int64) -> Int64:
        """(B,) one positive of each example: of several any, drawn anew at each visit."""
        rows, owners = gather(self.data.positives, examples)
        return rows[_drawn(owners, 1, generator(self.examples.seed, 24, step), len(examples))]

    def _ignored(self, examples: Int64, rows: Int64, places: Int64) -> Bool:
        """(B, P) what is left out of each question's denominator."""
        if self.mask_false_negatives:
            return _other_positives(self.data, examples, rows, places)
        return np.zeros((len(examples), len(rows)), bool)


class TargetBatches:
    """The batches of a run that learns float targets: each question with a list of passages.

    Args:
        data: the training set; examples have targets.
        examples: which of them each batch holds.
        per_question: maximum length of a list, drawn anew at each visit; None takes all passages.
        labelled: always put a positive into a question's list, drawn from those that have a target; the batch
            then has its `positives` and `ignored`.

    Raises:
        DataError: an example has fewer than two passages with a target.
    """

    def __init__(
        self,
        data: TrainingSet,
        examples: Epochs,
        *,
        per_question: int | None = None,
        labelled: bool = False,
    ) -> None:
        if (few := np.flatnonzero(data.scored.value_lengths().to_numpy() < 2)).size:
            raise DataError(
                f"{len(few)} of {len(data)} examples have fewer than two passages with a target, the first "
                f"is {data.ids[int(few[0])]}",
                hint="read them with needs='targets'",
            )
        self.data, self.examples, self.batch_size = data, examples, examples.batch_size
        self.per_question, self.labelled = per_question, labelled
        self._scored = data.scored.flatten().to_numpy().astype(np.int64)
        places = pa.array(np.arange(len(self._scored), dtype=np.int32))
        self._places = pa.ListArray.from_arrays(data.scored.offsets, places)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`.

        Raises:
            IndexError: the run has fewer batches.
        """
        data, examples = self.data, self.examples[step]
        places, owners = gather(self._places, examples)
        right = np.zeros(len(places), bool)
        if self.labelled:
            mask = positive_mask(data, examples, self._scored[places])
            labelled = np.flatnonzero(mask[owners, np.arange(len(places))])
            draw = generator(self.examples.seed, 24, step)
            right[labelled[_drawn(owners[labelled], 1, draw, len(examples))]] = True
        taken = _drawn(
            owners, self.per_question, generator(self.examples.seed, 23, step), len(examples), right
        )
        places, owners, right = places[taken], owners[taken], right[taken]
        rows, columns = _distinct(self._scored[places], data.canonical)
        targets = np.full((len(examples), len(rows)), np.nan, np.float32)
        targets[owners, columns] = data.targets[places]
        positives = np.full(len(examples), -1, np.int64)
        positives[owners[right]] = columns[right]
        ignored = np.zeros(targets.shape, bool)
        if self.labelled:
            ignored = _other_positives(data, examples, rows, positives)
        drawn = np.stack([owners, columns])
        return RetrieverBatch.of(data, examples, rows, positives, ignored, drawn, targets)


def positive_mask(data: TrainingSet, examples: Int64, rows: Int64) -> Bool:
    """(B, P) bool: whether passage `rows` (P,) is a positive of the question, compared by title and text."""
    positives, owners = gather(data.positives, examples)
    contents, column = np.unique(data.canonical[rows], return_inverse=True)  # (U,), (P,)
    sought = data.canonical[positives]
    place = np.minimum(np.searchsorted(contents, sought), len(contents) - 1)
    is_there = contents[place] == sought
    is_positive = np.zeros((len(examples), len(contents)), bool)
    is_positive[owners[is_there], place[is_there]] = True
    return is_positive[:, column]


def _other_positives(data: TrainingSet, examples: Int64, rows: Int64, places: Int64) -> Bool:
    """(B, P) `positive_mask` without `places` (B,), the column of each question's drawn positive or -1."""
    mask = positive_mask(data, examples, rows)
    own = np.flatnonzero(places >= 0)
    mask[own, places[own]] = False
    return mask


def _drawn(
    owners: Int64,
    most: int | None,
    draw: np.random.Generator,
    questions: int,
    first: Bool | None = None,
) -> Int64:
    """Places of at most `most` entries of each owner, in random order within it, those marked in `first`
    before the others; owners ascend."""
    behind = np.zeros(len(owners), bool) if first is None else ~first
    order = np.lexsort((draw.random(len(owners)), behind, owners))  # shuffled within each question
    if most is None:
        return order
    return order[ranges(0, np.bincount(owners, minlength=questions)) < most]


def _distinct(rows: Int64, canonical: Int32) -> tuple[Int64, Int64]:
    """The first row of every passage in its order, and for all rows where in it their passage stands.

    Example:
        >>> canonical = np.array([0, 1, 2, 3, 3, 5], np.int32)
        >>> [part.tolist() for part in _distinct(np.array([5, 3, 5, 4]), canonical)]
        [[5, 3], [0, 1, 0, 1]]
    """
    _, first, inverse = np.unique(canonical[rows], return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return rows[np.sort(first)], place[inverse]
