"""Train a retriever over hops (MDR): the recipe, top to bottom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from indexers.index import Index
from rag.training.distributed import World
from rag.training.fit import Loss
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import TrainingSet
from retrievers.examples.hop_batches import HopBatches, HopEpochs, IndexedHops, IndexedHopsBatch
from retrievers.examples.hop_split import split_hops
from retrievers.training.frozen import like_index
from retrievers.training.losses import in_batch_loss
from retrievers.training.mdr_config import MdrTrainConfig
from retrievers.training.model import BiEncoderModel
from retrievers.training.momentum import MomentumQueue
from retrievers.training.path_scores import PathScores
from retrievers.training.recipe import BiEncoderRun, Method, claimed, train_model
from retrievers.training.step import contrastive_step

__all__ = ["index_step", "train_mdr"]


def train_mdr(config: MdrTrainConfig) -> Path:
    """Train a retriever as `config` says, or resume the run that `config.out` holds.

    Every hop is a query of its own: the first is the question, each later one the question and the passages
    so far. Under torchrun every process calls this (not with negatives "index", where one is enough). Writes
    what `train_dpr` writes and, with negatives "index", `index/`: the index for the trained encoder.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: a question set is wrong, or has no question that can be used.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration.

    Source:
        Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval".

    Note:
        The paper has two hops, this any number; its order of bridge questions is the data set's, here it
        follows from the passages (`hop_orders`). Its second stage trains the question encoder against a bank
        of passage vectors that does not change: that is negatives "index", with the whole corpus as the bank.
    """
    with claimed(config) as world:
        if config.index is None:
            return _train(config, world, None)
        with Index.open(config.index) as index:
            frozen = config.data.negatives == "index"
            return _train(like_index(config, index, world) if frozen else config, world, index)


def _train(config: MdrTrainConfig, world: World, index: Index | None) -> Path:
    bank = index if config.data.negatives == "index" else None
    return train_model(
        config,
        world,
        lambda run: _method(config, run, bank),
        bank=bank,
        divide=lambda _, folder: split_hops(config, folder, index),
    )


def _method(config: MdrTrainConfig, run: BiEncoderRun, bank: Index | None) -> Method:
    """What the passages are told from: what is found in the index, or the batch, perhaps with a queue."""
    said, world, model, split = config.data, run.world, run.model, run.split
    data = TrainingSet.build(
        split.training(),
        run.tokenizer,
        corpus=() if bank is None else bank.passages,
        max_negatives=said.negatives_depth or None,
        match_answers=said.mask_false_negatives and bank is None,
        folder=config.out / "data",
        key=split.key if bank is None else f"{split.key} {bank.version}",
    )
    examples = HopEpochs(
        data.ids, said.batch_size, epochs=config.optim.epochs, seed=config.run.seed,
        max_batches=config.optim.max_batches,
    )  # fmt: skip
    scores = None
    if world.is_main and split.held_out:
        searched = None if bank is None or bank.dense is None else (bank.dense, bank.passages)
        scores = PathScores(run.tokenizer, split.held_out, most=said.validation_questions, index=searched)
    described = {
        "training examples (hops)": len(data),
        "held-out questions": 0 if scores is None else len(scores.examples),
    }
    if bank is not None:
        return Method(
            IndexedHops(data, examples),
            lambda batch: index_step(model, batch, bank, said.depth),
            scores,
            described=described,
        )
    batches = HopBatches(
        data, examples, hard_negatives=said.hard_negatives, seed=config.run.seed,
        mask_false_negatives=said.mask_false_negatives,
    )  # fmt: skip
    if not said.queue_size:

        def step(batch: RetrieverBatch) -> Loss:
            return contrastive_step(model, batch, world, said.chunk_size)

        return Method(batches, step, scores, described=described)
    queue = MomentumQueue(model, run.master, data, size=said.queue_size, momentum=said.momentum, world=world)

    def queued_step(batch: RetrieverBatch) -> Loss:
        loss = contrastive_step(model, batch, world, said.chunk_size, objective=queue.objective)
        queue.push(batch)
        return loss

    return Method(batches, queued_step, scores, queue, described)


def index_step(model: BiEncoderModel, batch: IndexedHopsBatch, index: Index, depth: int) -> Loss:
    """Each hop's passage against what its query finds in the index now; the question's later ones are masked.

        L = −(1/N) Σ_i log( exp s_{i,t(i)} / (exp s_{i,t(i)} + Σ_{j found for i, j not masked} exp s_{ij}) )

    Args:
        model: whose question tower is trained.
        batch: N hops.
        index: its vectors are the passages'.
        depth: passages found for each.
    """
    assert index.dense is not None
    assert index.embeddings is not None
    queries = model.encode_questions(batch.queries)  # (N, D)
    _, found = index.dense.search(queries.detach().float().cpu().numpy(), depth)  # (N, K)
    rows = np.concatenate([batch.targets[:, None], found], axis=1)  # (N, 1 + K)
    left_out = (found < 0) | (found == batch.targets[:, None])
    left_out |= (found[:, :, None] == batch.ignored[:, None, :]).any(axis=2)
    distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
    vectors = torch.from_numpy(index.embeddings.rows(distinct)).to(queries.device)  # (U, D)
    chosen = vectors[torch.from_numpy(places.reshape(rows.shape)).to(queries.device)]
    scores = torch.einsum("nd,nkd->nk", queries, chosen) * model.scale
    ignored = torch.from_numpy(np.pad(left_out, ((0, 0), (1, 0)))).to(queries.device)
    value = in_batch_loss(scores, torch.zeros(len(rows), dtype=torch.int64, device=queries.device), ignored)
    return Loss(value, examples=len(rows), tokens=sum(map(len, batch.queries)))
