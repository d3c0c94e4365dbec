"""Every batch of a retriever's training run, by step: in-batch and hard negatives; other positives masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indexers.passages import PassageStore
from rag.core.arrays import Bool, Float32, Int32, Int64, ranges
from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.runtime.seeds import generator
from rag.training.distributed import check_share
from retrievers.examples.data import CandidateLists, ExampleTable


@dataclass(frozen=True, slots=True)
class RetrieverBatch:
    """B questions and P passages.

    A shard holds some of the texts; `positives`, `ignored` and `drawn` are always those of the whole batch.

    Attributes:
        questions: this shard's questions, perhaps with passages (all B in an uncut batch).
        passages: this shard's passages (all P in an uncut batch).
        positives: (B,) the positive of each question; -1 if it has none, possible only with targets.
        ignored: (B, P) bool, passages left out of a question's denominator: those that are one of its other
            positives.
        drawn: (2, H) question and passage of every negative that was drawn for a question.
        examples: (B,) numbers of the examples.
        first_question: position of `questions[0]` in the whole batch.
        first_passage: position of `passages[0]` in the whole batch.
        targets: (B, P) float32 targets of the passages in each question's list, NaN elsewhere; None for
            losses that learn from positives.
    """

    questions: Sequence[Query]
    passages: Sequence[Passage]
    positives: Int64
    ignored: Bool
    drawn: Int64
    examples: Int64
    first_question: int = 0
    first_passage: int = 0
    targets: Float32 | None = None

    def shard(self, rank: int, world_size: int) -> RetrieverBatch:
        """The part of one of `world_size` processes: consecutive texts of both kinds, as equal as possible.

        Raises:
            ConfigError: fewer questions or passages than processes.

        Example:
            >>> numbers, drawn = np.arange(3), np.zeros((2, 0), np.int64)
            >>> texts = [Query("who?")] * 3, [Passage("1", "", "text")] * 3
            >>> batch = RetrieverBatch(*texts, numbers, np.zeros((3, 3), bool), drawn, numbers)
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
        data: the training examples; each has a positive.
        examples: which of them each batch holds.
        hard_negatives: number of negatives per question, drawn without replacement.
        mask_false_negatives: see `RetrieverBatch.ignored`; if off, nothing is ignored, and a passage that
            several questions bring is encoded several times.

    Raises:
        ConfigError: a batch would hold a single passage.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering", section 3.2.

    Note:
        DPR masks nothing: another question's positive counts as negative even where it is the same passage.
        Its code takes a question's first positive at every visit; here any of them is drawn.
    """

    def __init__(
        self,
        data: ExampleTable,
        examples: Epochs,
        *,
        hard_negatives: int = 1,
        mask_false_negatives: bool = True,
    ) -> None:
        self.data, self.examples, self.batch_size = data, examples, examples.batch_size
        self.hard_negatives = hard_negatives
        self.mask_false_negatives = mask_false_negatives
        self._mined: tuple[Int32, PassageStore] | None = None
        has_hard = hard_negatives > 0 and data.has_negatives
        if hard_negatives > 0 and not has_hard:
            get_logger(__name__).warning(
                "hard_negatives is %d, but no example has any: training on in-batch negatives alone",
                hard_negatives,
            )
        if self.batch_size == 1 and not has_hard:
            raise ConfigError(
                "a batch, or all that is held out, is one question without hard negatives, so "
                "that its positive has no negatives",
                hint="raise batch_size or validation_fraction, or mine negatives with `rag mine` and set "
                "hard_negatives",
            )

    def __len__(self) -> int:
        return len(self.examples)

    def use_negatives(self, rows: Int32, corpus: PassageStore) -> None:
        """Draw from newly mined negatives from the next batch on.

        Args:
            rows: (Q, K) rows of the corpus for each example, hardest first, then -1; an example without any
                keeps those of its file.
        """
        self._mined = rows, corpus

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`.

        Raises:
            IndexError: the run has fewer batches.
            ConfigError: no question of the batch has a negative.
        """
        numbers = self.examples[step]
        lists = self.data.candidates(numbers)
        negatives, owners = self._negatives(numbers, lists)
        draw = generator(self.examples.seed, 22, step)
        taken = _drawn(owners, self.hard_negatives, draw, len(numbers))
        passages = lists.passages(self._positives(step, lists)) + self._texts(lists, negatives[taken])
        owners, columns = owners[taken], np.arange(len(passages))
        if self.mask_false_negatives:
            passages, columns = _distinct(passages)
        positives, drawn = columns[: len(numbers)], np.stack([owners, columns[len(numbers) :]])
        ignored = self._ignored(numbers, lists, passages, positives)
        if len(passages) - ignored.sum(axis=1).min() < 2:
            raise ConfigError(
                f"batch {step} ({len(numbers)} questions, {len(passages)} passages): no question has a "
                "negative",
                hint="raise batch_size, mine negatives with `rag mine`, or set mask_false_negatives=false",
            )
        return RetrieverBatch(lists.queries, passages, positives, ignored, drawn, numbers)

    def _positives(self, step: int, lists: CandidateLists) -> Int64:
        """(B,) place of a positive of each example: of several any, drawn anew at each visit."""
        places = np.flatnonzero(lists.is_positive)
        draw = generator(self.examples.seed, 24, step)
        return places[_drawn(lists.owners[places], 1, draw, len(lists.queries))]

    def _negatives(self, numbers: Int64, lists: CandidateLists) -> tuple[Int64, Int64]:
        """Places (N,) of the examples' negatives, or ~row of those that were mined, and whose they are."""
        places = np.flatnonzero(lists.is_negative)
        owners = lists.owners[places]
        if self._mined is None:
            return places, owners
        rows = self._mined[0][numbers]  # (B, K)
        mined_for, _ = np.nonzero(rows >= 0)
        own = ~np.isin(owners, mined_for)
        owners = np.concatenate([owners[own], mined_for])
        places = np.concatenate([places[own], ~rows[rows >= 0].astype(np.int64)])
        order = np.argsort(owners, kind="stable")
        return places[order], owners[order]

    def _texts(self, lists: CandidateLists, places: Int64) -> list[Passage]:
        own = iter(lists.passages(places[places >= 0]))
        rows = ~places[places < 0]
        mined = iter(self._mined[1].get_many(rows) if self._mined is not None else ())
        return [next(own if place >= 0 else mined) for place in places.tolist()]

    def _ignored(
        self, numbers: Int64, lists: CandidateLists, passages: Sequence[Passage], positives: Int64
    ) -> Bool:
        """(B, P) what is left out of each question's denominator."""
        ignored = np.zeros((len(numbers), len(passages)), bool)
        if self.mask_false_negatives:
            columns = {(p.title, p.text): column for column, p in enumerate(passages)}
            places = np.flatnonzero(lists.is_positive)
            for owner, passage in zip(lists.owners[places], lists.passages(places), strict=True):
                column = columns.get((passage.title, passage.text), -1)
                if column not in (-1, positives[owner]):
                    ignored[owner, column] = True
        return ignored


class TargetBatches:
    """The batches of a run that learns float targets: each question with a list of passages.

    Args:
        data: the training examples, with targets.
        examples: which of them each batch holds.
        per_question: maximum length of a list, drawn anew at each visit; None takes all passages.
    """

    def __init__(self, data: ExampleTable, examples: Epochs, *, per_question: int | None = None) -> None:
        self.data, self.examples, self.batch_size = data, examples, examples.batch_size
        self.per_question = per_question

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`.

        Raises:
            IndexError: the run has fewer batches.
        """
        numbers = self.examples[step]
        lists = self.data.candidates(numbers)
        places = np.flatnonzero(~np.isnan(lists.targets))
        draw = generator(self.examples.seed, 23, step)
        places = places[_drawn(lists.owners[places], self.per_question, draw, len(numbers))]
        passages, columns = _distinct(lists.passages(places))
        targets = np.full((len(numbers), len(passages)), np.nan, np.float32)
        owners = lists.owners[places]
        targets[owners, columns] = lists.targets[places]
        return RetrieverBatch(
            lists.queries, passages, np.full(len(numbers), -1), np.zeros(targets.shape, bool),
            np.stack([owners, columns]), numbers, targets=targets,
        )  # fmt: skip


def _drawn(owners: Int64, most: int | None, draw: np.random.Generator, questions: int) -> Int64:
    """Places of at most `most` entries of each owner, in random order within it; owners ascend."""
    order = np.lexsort((draw.random(len(owners)), owners))  # shuffled within each question
    if most is None:
        return order
    return order[ranges(0, np.bincount(owners, minlength=questions)) < most]


def _distinct(passages: Sequence[Passage]) -> tuple[list[Passage], Int64]:
    """Every passage once, in their order, and for each where in it it stands.

    Example:
        >>> one, other, again = (Passage(str(n), "", text) for n, text in enumerate("aba"))
        >>> [passage.id for passage in _distinct([one, other, again])[0]], _distinct([one, other, again])[1]
        (['0', '1'], array([0, 1, 0]))
    """
    first: dict[tuple[str, str], Passage] = {}
    for passage in passages:
        first.setdefault((passage.title, passage.text), passage)
    columns = {content: column for column, content in enumerate(first)}
    return list(first.values()), np.array([columns[p.title, p.text] for p in passages], np.int64)
