"""Every batch of a retriever's training run, by step: in-batch and hard negatives, false negatives masked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rag.core.errors import ConfigError

__all__ = ["RetrieverBatch"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RetrieverBatch:
    """B questions and P passages as token ids; the passages of a question stand together, in question order.

    A shard holds the texts of some of the questions; `positives`, `ignored` and `owners` are always those of
    the whole batch.

    Attributes:
        questions: token ids of this shard's questions (all B in an uncut batch).
        passages: token ids of their passages (all P in an uncut batch).
        positives: (B,) passage that answers each question.
        ignored: (B, P) bool, passages left out of a question's denominator: the same passage as one of its
            positives, or one that holds one of its answers; never its own positive.
        owners: (P,) question that each passage was drawn for.
        examples: (B,) examples of the training set.
        first_question: position of `questions[0]` in the whole batch.
        first_passage: position of `passages[0]` in the whole batch.
        negatives_version: which negatives were drawn from, "" for the training file's own.
    """

    questions: list[Int32]
    passages: list[Int32]
    positives: Int64
    ignored: npt.NDArray[np.bool_]
    owners: Int64
    examples: Int64
    first_question: int = 0
    first_passage: int = 0
    negatives_version: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of this shard's texts."""
        return sum(map(len, self.questions)) + sum(map(len, self.passages))

    def shard(self, rank: int, world_size: int) -> RetrieverBatch:
        """The part of one of `world_size` processes: consecutive questions, as equal as possible.

        Raises:
            ConfigError: fewer questions than processes.

        Example:
            >>> texts = [np.array([1], np.int32)] * 3
            >>> numbers = np.arange(3)
            >>> batch = RetrieverBatch(texts, texts, numbers, np.zeros((3, 3), bool), numbers, numbers)
            >>> [len(batch.shard(rank, 2).questions) for rank in range(2)]
            [1, 2]
        """
        total = len(self.positives)
        if total < world_size:
            raise ConfigError(
                f"a batch of {total} questions cannot be shared by {world_size} processes",
                hint="raise batch_size, or start fewer processes",
            )
        start, stop = total * rank // world_size, total * (rank + 1) // world_size
        first, last = (int(i) for i in np.searchsorted(self.owners, [start, stop]))
        return replace(
            self,
            questions=self.questions[start:stop],
            passages=self.passages[first:last],
            first_question=start,
            first_passage=first,
        )
