"""Train a dense retriever with in-batch and hard negatives (DPR): the recipe, top to bottom."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch

from rag.core.files import directory_lock
from rag.core.log import get_logger
from rag.runtime.hardware import use_threads
from rag.runtime.seeds import seed_everything
from rag.training.claim import claim_run
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import TrainingSet
from retrievers.examples.held_out import HeldOutScores, make_batches
from retrievers.examples.split import split_examples
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.config import DprTrainConfig
from retrievers.training.run import (
    encoder_form,
    finish_run,
    fit_settings,
    load_model,
)
from retrievers.training.step import contrastive_step

__all__ = ["train_dpr"]


def train_dpr(config: DprTrainConfig) -> Path:
    """Train a retriever as `config` says, or resume the run that `config.out` holds.

    Under torchrun every process calls this; the batch is shared among them and the gradients are those of one
    process. Writes into `config.out`: `config.json`, `metrics.jsonl`, `curves.svg`, `data/` (tokenised),
    `checkpoints/`, `figures.json`, and `encoder/`, the finished encoder with its model card.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: an input file is wrong, or no held-out question can be judged.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration.

    Source:
        Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering", section 3.

    Note:
        Unlike the paper, passages that answer a question are left out of its negatives
        (`mask_false_negatives`).
    """
    with World.from_environment() as world, directory_lock(config.out) if world.is_main else nullcontext():
        if world.is_main:
            claim_run(config, config.out)
        world.barrier()
        return _train(config, world)


def _train(config: DprTrainConfig, world: World) -> Path:
    log = get_logger(__name__)
    seed_everything(config.seed)
    use_threads(config.threads)

    # model
    model, master = load_model(config, world.device)
    tokenizer = RetrieverTokenizer(model.settings.question, model.settings.passage)

    # data
    if not world.is_main:
        world.barrier()  # the main process divides and tokenises, the others find it done
    split = split_examples(config, config.out / "data")
    data = TrainingSet.build(
        split.training(),
        tokenizer,
        max_negatives=config.negatives_depth or None,
        match_answers=config.mask_false_negatives,
        folder=config.out / "data",
        key=split.key,
    )
    if world.is_main:
        world.barrier()
    batches = make_batches(config, data)
    log.info(
        "%d questions to train on, %d held out, %d passages, %d batches of %d questions",
        *(len(data), len(split.held_out), len(data.passages), len(batches), batches.batch_size),
    )

    # optimisation
    def compute_loss(_: torch.nn.Module, batch: RetrieverBatch) -> Loss:
        return contrastive_step(model, batch, world, config.chunk_size)

    validation = HeldOutScores(config, split, tokenizer) if world.is_main and split.held_out else None
    result = fit(
        model,
        master,
        batches,
        compute_loss,
        fit_settings(config),
        config.out,
        evaluate=None if not split.held_out else lambda _: {} if validation is None else validation(model),
        world=world,
    )

    # export
    finished = config.out / "encoder"
    if world.is_main:
        described = {
            "training questions": len(data),
            "held-out questions": len(split.held_out),
            "passages": len(data.passages),
            "files": ", ".join(path.name for path in config.train_files),
            "steps": result.chosen_step,
            "questions a step": batches.batch_size,
            "temperature": model.temperature,
        }
        if validation is not None and validation.search is not None:
            search = validation.search
            known = "is a positive" if search.kind == "positive" else "holds an answer"
            described["a searched passage is right if it"] = known
            described["held-out questions whose positives are not in the index"] = search.missing
        finish_run(config, model, result, encoder_form(config, model), described)
    world.barrier()
    return finished
