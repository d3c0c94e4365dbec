"""Train the question encoder alone, against a frozen index (ADORE): the recipe, top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.protocols import IntArray
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.training.fit import Loss
from retrievers.examples.batches import Epochs
from retrievers.examples.records import TrainingExample
from retrievers.examples.tokens import Int32, TokenTable
from retrievers.training.config import AdoreTrainConfig
from retrievers.training.frozen import like_index
from retrievers.training.losses import ranknet_loss
from retrievers.training.model import BiEncoderModel
from retrievers.training.recipe import BiEncoderRun, Method, claimed, train_model
from retrievers.training.validation import TOP_KS, CorpusSearch, right_rows

__all__ = ["AdoreBatch", "AdoreBatches", "candidates", "train_adore"]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AdoreBatch:
    """B questions as token ids, and the rows of the index that are right for each."""

    questions: list[Int32]
    right: list[frozenset[int]]


class AdoreBatches:
    """The batches of a run by step.

    Args:
        questions: token ids of n questions.
        right: right rows of each.
        examples: which of them each batch holds.
    """

    def __init__(self, questions: TokenTable, right: Sequence[frozenset[int]], examples: Epochs) -> None:
        self._questions, self._right, self._examples = questions, right, examples
        self.batch_size = examples.batch_size

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, step: int) -> AdoreBatch:
        chosen = self._examples[step].tolist()
        return AdoreBatch([self._questions[i] for i in chosen], [self._right[i] for i in chosen])


def candidates(
    found: IntArray, right: Sequence[frozenset[int]]
) -> tuple[IntArray, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The lists that are ranked: what was found, and where nothing right was found, what is right.

    Args:
        found: rows (B, K), -1 where nothing was found.
        right: right rows of each question.

    Returns:
        Rows (B, K + A), -1 in empty places, and which of them are right.

    Example:
        >>> rows, relevant = candidates(np.array([[4, 2], [3, 1]]), [frozenset({2}), frozenset({9})])
        >>> rows.tolist(), relevant.astype(int).tolist()
        ([[4, 2, -1], [3, 1, 9]], [[0, 1, 0], [0, 0, 1]])
    """
    missed = [
        () if own.intersection(row) else tuple(sorted(own))
        for row, own in zip(found.tolist(), right, strict=True)
    ]
    width = max(map(len, missed))
    rows = np.full((len(found), found.shape[1] + width), -1, np.int64)
    rows[:, : found.shape[1]] = found
    for question, added in enumerate(missed):
        rows[question, found.shape[1] : found.shape[1] + len(added)] = added
    relevant = [[row in own for row in listed] for listed, own in zip(rows.tolist(), right, strict=True)]
    return rows, np.array(relevant)


def train_adore(config: AdoreTrainConfig) -> Path:
    """Train the question encoder as `config` says, or resume the run that `config.out` holds.

    Every step searches the index with the question encoder as it is at that step, so negatives are never
    stale; passages are never encoded. Writes what `train_dpr` writes, and `index/`: the index for the trained
    encoder, without a copy of its vectors where the file system allows it.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`, with both towers.

    Raises:
        DataError: an input file is wrong, or no question has a positive in the index.
        ConfigError: the configuration cannot work, or several processes were started.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or the index's encoder
            is not the one it was built with any more.

    Source:
        Zhan et al. 2021, "Optimizing Dense Retrieval Model Training with Hard Negatives", section 4.

    Note:
        Search is as exact as the index is: build it with index type flat or fp16 for the published recipe.
    """
    with claimed(config) as world, Index.open(config.index) as index:
        known = like_index(config, index, world)
        return train_model(known, world, lambda run: _method(known, run, index), bank=index)


def _method(config: AdoreTrainConfig, run: BiEncoderRun, index: Index) -> Method:
    assert index.embeddings is not None
    assert index.dense is not None
    vectors, search, model = index.embeddings, index.dense, run.model

    # data
    texts = CorpusTexts(index.passages)
    examples, right = _answerable(list(run.split.training()), texts, index)
    questions = TokenTable.of(run.tokenizer.queries([example.query for example in examples]))
    epochs = Epochs(
        len(questions), config.data.batch_size, epochs=config.optim.epochs,
        max_batches=config.optim.max_batches, seed=config.run.seed,
    )  # fmt: skip

    # objective
    def compute_loss(batch: AdoreBatch) -> Loss:
        encoded = model.encode_questions(batch.questions)  # (B, D)
        _, found = search.search(encoded.detach().float().cpu().numpy(), config.depth)  # (B, K)
        rows, relevant = candidates(found, batch.right)  # (B, K + A)
        distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
        passages = torch.from_numpy(vectors.rows(distinct)).to(encoded.device)  # (U, D)
        chosen = torch.from_numpy(places.reshape(rows.shape)).to(encoded.device)
        scores = torch.einsum("bd,bkd->bk", encoded, passages[chosen]) * model.scale
        scores = scores.masked_fill(torch.from_numpy(rows < 0).to(encoded.device), float("-inf"))
        value = ranknet_loss(scores, torch.from_numpy(relevant).to(encoded.device), config.metric_cut)
        return Loss(value, examples=len(batch.questions), tokens=sum(map(len, batch.questions)))

    # validation
    held_out = run.split.held_out
    judge = CorpusSearch(index.passages, held_out, texts=texts) if held_out else None
    asked = [np.array(ids, np.int32) for ids in run.tokenizer.queries([e.query for e in held_out])]

    @torch.no_grad()
    def evaluate(model: BiEncoderModel) -> Mapping[str, float]:
        assert judge is not None
        model.eval()
        _, found = search.search(model.encode_questions(asked).float().cpu().numpy(), TOP_KS[-1])
        model.train()
        return judge.judge(found)

    described = {"training questions": len(examples), "passages of the index": len(vectors)}
    return Method(AdoreBatches(questions, right, epochs), compute_loss, evaluate, described=described)


def _answerable(
    examples: list[TrainingExample], texts: CorpusTexts, index: Index
) -> tuple[list[TrainingExample], list[frozenset[int]]]:
    """The examples that have a positive in the index, and its rows."""
    rows = right_rows(texts, examples)
    kept = [(example, own) for example, own in zip(examples, rows, strict=True) if own]
    if not kept:
        raise DataError(
            f"none of {len(examples)} training questions has a positive in {index.directory}",
            hint="index the passages the training file was made from (--split none keeps them whole)",
        )
    if len(kept) < len(examples):
        log.warning(
            "%d of %d training questions have no positive in the index and are left out",
            *(len(examples) - len(kept), len(examples)),
        )
    return [example for example, _ in kept], [own for _, own in kept]
