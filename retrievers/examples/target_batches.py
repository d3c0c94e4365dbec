"""Batches of questions whose passages have float targets: what distillation learns from."""

from __future__ import annotations

import numpy as np

from rag.core.errors import DataError
from rag.runtime.seeds import generator
from retrievers.examples.batches import Epochs, RetrieverBatch, distinct_rows, drawn_rows
from retrievers.examples.data import TrainingSet
from retrievers.examples.tokens import TokenTable

__all__ = ["TargetBatches"]


class TargetBatches:
    """The batches of a run that learns targets: each question with a list of passages, no positives needed.

    Args:
        data: the training set; examples have targets.
        batch_size: questions in a batch, over all processes; fewer if there are fewer examples.
        per_question: most passages of a list, drawn anew at each visit; None takes all.
        epochs: passes over the data, fractions allowed.
        max_batches: ends the run earlier.
        seed: of every choice.

    Raises:
        DataError: an example has fewer than two passages with a target.
    """

    def __init__(
        self,
        data: TrainingSet,
        *,
        batch_size: int,
        per_question: int | None = None,
        epochs: float = 1.0,
        max_batches: int | None = None,
        seed: int = 13,
    ) -> None:
        if (few := np.flatnonzero(data.scored.lengths < 2)).size:
            raise DataError(
                f"{len(few)} of {len(data)} examples have fewer than two passages with a target, the first "
                f"is {data.ids[int(few[0])]}",
                hint="read them with needs='targets'",
            )
        self.data, self.per_question, self.seed = data, per_question, seed
        self.examples = Epochs(len(data), batch_size, epochs=epochs, max_batches=max_batches, seed=seed)
        self.batch_size = self.examples.batch_size
        count = len(data.scored.values)
        self._places = TokenTable(np.arange(count, dtype=np.int32), data.scored.bounds)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`.

        Raises:
            IndexError: the run has fewer batches.
        """
        examples = self.examples[step]
        table = self.data.scored
        places, owners = TokenTable(np.arange(len(table.values), dtype=np.int32), table.bounds).gather(
            examples
        )
        taken = drawn_rows(owners, self.per_question, generator(self.seed, 23, step), len(examples))
        places, owners = places[taken], owners[taken]
        rows, columns = distinct_rows(self.data.scored.values[places].astype(np.int64), self.data.canonical)
        targets = np.zeros((len(examples), len(rows)), np.float32)
        targets[owners, columns] = self.data.targets[places]
        ignored = np.ones(targets.shape, bool)
        ignored[owners, columns] = False
        return RetrieverBatch(
            questions=[self.data.questions[i] for i in examples.tolist()],
            passages=[self.data.passages[i] for i in rows.tolist()],
            positives=np.zeros(0, np.int64),
            ignored=ignored,
            drawn=np.stack([owners, columns]),
            examples=examples,
            targets=targets,
        )
