"""Train the question encoder alone, against a frozen index (ADORE): the recipe, top to bottom."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from indexers.gold import CorpusTexts
from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.examples import Example
from rag.training.fit import Loss
from rag.training.run import Method
from retrievers.examples.batches import Epochs
from retrievers.examples.tokens import TokenTable
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index
from retrievers.training.config import AdoreTrainConfig
from retrievers.training.frozen import score_rows
from retrievers.training.losses import ranknet_loss
from retrievers.training.recipe import BiEncoderRun, train_model
from retrievers.training.split import split_examples
from retrievers.training.validation import TOP_KS, CorpusSearch, right_rows

log = get_logger(__name__)


def candidates(
    retrieved: Int64, right: Sequence[frozenset[int]]
) -> tuple[Int64, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The lists that are ranked: the retrieved passages, and the positives if none of them was retrieved.

    Args:
        retrieved: rows (B, K), -1 in empty places.
        right: rows of each question's positives.

    Returns:
        Rows (B, K + A), -1 in empty places, and which of them are positives.

    Example:
        >>> rows, relevant = candidates(np.array([[4, 2], [3, 1]]), [frozenset({2}), frozenset({9})])
        >>> rows.tolist(), relevant.astype(int).tolist()
        ([[4, 2, -1], [3, 1, 9]], [[0, 1, 0], [0, 0, 1]])
    """
    missed = [
        torch.tensor([] if gold.intersection(row) else sorted(gold), dtype=torch.int64)
        for row, gold in zip(retrieved.tolist(), right, strict=True)
    ]
    added = pad_sequence(missed, batch_first=True, padding_value=-1).numpy()  # (B, A)
    rows = np.concatenate([retrieved, added], axis=1)
    relevant = [[row in gold for row in listed] for listed, gold in zip(rows.tolist(), right, strict=True)]
    return rows, np.array(relevant)


def train_adore(config: AdoreTrainConfig) -> Path:
    """Train the question encoder as `config` says, in one process; see `train_model`.

    Every step searches the index with the question encoder as it is at that step, so negatives are never
    stale; passages are never encoded.

    Source:
        Zhan et al. 2021, "Optimizing Dense Retrieval Model Training with Hard Negatives", section 4.

    Note:
        Search is as exact as the index is: build it with index type flat or fp16 for the published recipe.
    """
    with Index.open(config.index) as index:
        adopted = adopt_index(config, index)
        return train_model(
            adopted,
            lambda run: _method(adopted, run, index),
            bank=index,
            one_process="only questions are encoded",
        )


def _method(config: AdoreTrainConfig, run: BiEncoderRun, index: Index) -> Method:
    search, model = index.require_dense().vectors, run.model

    # data
    split, texts = split_examples(config, run.out / "data"), CorpusTexts(index.passages)
    examples, right = _answerable(list(split.training()), texts, index)
    questions = TokenTable.of(run.tokenizer.queries([example.query for example in examples]))

    # objective
    def compute_loss(chosen: Int64) -> Loss:
        ids = [questions[example] for example in chosen.tolist()]
        encoded = model.encode_questions(ids)  # (B, D)
        _, retrieved = search.search(encoded.detach().float().cpu().numpy(), config.depth)  # (B, K)
        rows, relevant = candidates(retrieved, [right[example] for example in chosen.tolist()])  # (B, K + A)
        scores = score_rows(model, index, encoded, rows)
        value = ranknet_loss(scores, torch.from_numpy(relevant).to(encoded.device))
        return Loss(value, examples=len(ids), tokens=sum(map(len, ids)))

    # validation
    held_out = split.held_out
    judge = CorpusSearch(index.passages, held_out, texts=texts) if held_out else None
    held_out_ids = run.tokenizer.queries([example.query for example in held_out])

    @torch.no_grad()
    def evaluate(model: BiEncoderModel) -> Mapping[str, float]:
        assert judge is not None
        model.eval()
        _, retrieved = search.search(model.encode_questions(held_out_ids).float().cpu().numpy(), TOP_KS[-1])
        model.train()
        return judge.judge(retrieved)

    facts = {"training questions": len(examples), "passages of the index": len(index.passages)}
    return run.method(Epochs.of(config, len(examples)), compute_loss, held_out, evaluate, facts=facts)


def _answerable(
    examples: list[Example], texts: CorpusTexts, index: Index
) -> tuple[list[Example], list[frozenset[int]]]:
    """The examples that have a positive in the index, and its rows."""
    rows = right_rows(texts, examples)
    kept = [(example, gold) for example, gold in zip(examples, rows, strict=True) if gold]
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
    return [example for example, _ in kept], [gold for _, gold in kept]
