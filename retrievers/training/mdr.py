"""Train a retriever over hops (MDR): the recipe, top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexers.index import Index
from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.training.distributed import World
from rag.training.fit import BatchSource, FitHooks, Loss, fit
from rag.training.precision import MasterWeights
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import TrainingSet
from retrievers.examples.hop_batches import HopBatches, HopEpochs, IndexedHops, IndexedHopsBatch
from retrievers.examples.hop_split import split_hops
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.adore import FrozenIndex, like_index, reissue
from retrievers.training.losses import in_batch_loss
from retrievers.training.mdr_config import MdrTrainConfig
from retrievers.training.model import BiEncoderModel
from retrievers.training.momentum import MomentumQueue
from retrievers.training.path_scores import PathScores
from retrievers.training.recipe import claimed
from retrievers.training.run import encoder_form, finish_run, load_model
from retrievers.training.step import contrastive_step

__all__ = ["index_step", "train_mdr"]

_MOST_EXAMPLES = 24  # of one question: four orders of six hops


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
            if frozen and world.size > 1:
                raise ConfigError(
                    f"{world.size} processes were started, one is enough: only queries are encoded",
                    hint="start it without torchrun",
                )
            return _train(like_index(config, index) if frozen else config, world, index)


def _train(config: MdrTrainConfig, world: World, index: Index | None) -> Path:
    said, log = config.data, get_logger(__name__)
    bank = index if said.negatives == "index" else None

    # model
    model, master = load_model(config, world.device, freeze_passages=bank is not None)
    tokenizer = RetrieverTokenizer(
        model.settings.question, model.settings.passage, query_tokens=said.query_tokens
    )

    # data
    if not world.is_main:
        world.barrier()  # the main process divides and tokenises, the others find it done
    split = split_hops(config, config.out / "data", index)
    data = TrainingSet.build(
        split.training(),
        tokenizer,
        corpus=() if bank is None else bank.passages,
        max_negatives=said.negatives_depth or None,
        match_answers=said.mask_false_negatives and bank is None,
        folder=config.out / "data",
        key=split.key if bank is None else f"{split.key} {bank.version}",
    )
    if world.is_main:
        world.barrier()
    steps = config.optim.max_steps
    examples = HopEpochs(
        data.ids, said.batch_size, epochs=config.optim.epochs, seed=config.run.seed,
        max_batches=None if steps is None else steps * config.optim.accumulate,
    )  # fmt: skip
    log.info(
        "%d hops to train on, %d held out, %d batches of %d questions",
        *(len(data), len(split.held_out), len(examples), examples.batch_size),
    )

    # optimisation
    batches, compute_loss, hooks = _method(config, world, model, master, data, examples, bank)
    scores = None
    if world.is_main and split.held_out:
        searched = None if bank is None or bank.dense is None else (bank.dense, bank.passages)
        scores = PathScores(tokenizer, split.held_out, most=said.validation_questions, index=searched)
    result = fit(
        model,
        master,
        batches,
        compute_loss,
        config.optim,
        config.run,
        config.out,
        evaluate=None if not split.held_out else lambda _: {} if scores is None else scores(model),
        hooks=hooks,
        world=world,
    )

    # export
    finished = config.out / "encoder"
    if world.is_main:
        described = {
            "training examples (hops)": len(data),
            "held-out questions": 0 if scores is None else len(scores.examples),
            "files": ", ".join(path.name for path in config.train_files),
            "steps": result.chosen_step,
            "questions a step": examples.batch_size,
            "temperature": model.temperature,
        }
        form, whole = encoder_form(config, model), None
        longest = min(said.query_tokens, model.settings.passage.max_length_limit())
        form = replace(form, max_length=max(form.max_length, longest))
        if bank is not None:  # the passage tower in the numbers it came in
            plain = config.model_copy(update={"optim": config.optim.replaced(precision="fp32")})
            whole, _ = load_model(plain, "cpu", freeze_passages=True)
            form = replace(form, max_length=config.model.passage_tokens)
        finish_run(config, model, result, form, described, exported=whole)
        if bank is not None:
            reissue(config, finished)
    world.barrier()
    return finished


def _method(
    config: MdrTrainConfig,
    world: World,
    model: BiEncoderModel,
    master: MasterWeights,
    data: TrainingSet,
    examples: HopEpochs,
    bank: Index | None,
) -> tuple[BatchSource[Any], Callable[[torch.nn.Module, Any], Loss], FitHooks]:
    """What the passages are told from: what is found in the index, or the batch, perhaps with a queue."""
    said = config.data
    if bank is not None:
        return (
            IndexedHops(data, examples),
            lambda _, batch: index_step(model, batch, bank, said.depth),
            FrozenIndex(bank.version),
        )
    batches = HopBatches(
        data, examples, hard_negatives=said.hard_negatives, seed=config.run.seed,
        mask_false_negatives=said.mask_false_negatives,
    )  # fmt: skip
    if not said.queue_size:
        return batches, lambda _, batch: contrastive_step(model, batch, world, said.chunk_size), FitHooks()
    queue = MomentumQueue(model, master, data, size=said.queue_size, momentum=said.momentum, world=world)

    def compute_loss(_: torch.nn.Module, batch: RetrieverBatch) -> Loss:
        loss = contrastive_step(model, batch, world, said.chunk_size, objective=queue.objective)
        queue.push(batch)
        return loss

    return batches, compute_loss, queue


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
