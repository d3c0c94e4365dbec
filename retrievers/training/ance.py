"""Train a dense retriever against its own index (ANCE): the recipe, top to bottom.

Trainer and inferencer are two processes that meet in the folder of the run, or one process that does both in
turn. Whichever is killed, starting it again is all there is to do.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from indexers.index import Index
from indexers.protocols import FloatArray
from rag.core.errors import ConfigError
from rag.core.files import atomic_write_json, directory_lock
from rag.core.log import get_logger
from rag.runtime.hardware import use_threads
from rag.runtime.seeds import seed_everything
from rag.training.claim import claim_run
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import TrainingSet
from retrievers.examples.held_out import HeldOutScores, make_batches
from retrievers.examples.records import TrainingExample
from retrievers.examples.split import ExampleSplit, split_examples
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.ance_config import AnceTrainConfig
from retrievers.training.exchange import negatives_exchange
from retrievers.training.inferencer import Inferencer
from retrievers.training.losses import in_batch_objective, pairwise_objective
from retrievers.training.model import BiEncoderModel
from retrievers.training.run import (
    encoder_form,
    export_model,
    finish_run,
    fit_settings,
    load_model,
)
from retrievers.training.staleness import DriftMeter, ProbeSet
from retrievers.training.step import contrastive_step

__all__ = ["Role", "run_inferencer", "train_ance"]

Role = Literal["both", "trainer"]
_FINISHED = "finished.json"

log = get_logger(__name__)


def train_ance(config: AnceTrainConfig, *, role: Role = "both") -> Path:
    """Train a retriever with negatives that its own snapshots find, or resume the run in `config.out`.

    Writes what `train_dpr` writes, and `snapshots/` and `negatives/`, where it meets the inferencer.

    Args:
        config: of the run.
        role: "both" mines in line whenever a refresh is due; "trainer" leaves that to `run_inferencer` in
            another process, and takes up what it publishes without waiting.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: an input file is wrong.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text
        Retrieval".

    Note:
        The optimiser is AdamW, not LAMB, and the learning rate is warmed up once, not at every refresh.
    """
    with World.from_environment() as world, directory_lock(config.out) if world.is_main else nullcontext():
        if world.is_main:
            claim_run(config, config.out)
            (config.out / _FINISHED).unlink(missing_ok=True)
        world.barrier()
        with Index.open(config.index) as index:
            finished = _train(config, role, world, index)
        if world.is_main:
            atomic_write_json(config.out / _FINISHED, {"encoder": finished.name})
        return finished


def run_inferencer(config: AnceTrainConfig) -> Path:
    """Mine with every newer snapshot of the trainer that works in `config.out`, until it has finished.

    Returns:
        The folder of the published negatives.

    Raises:
        MismatchedArtifactError: the negatives there were mined for other examples or another corpus.
        ResourceError: another inferencer works there.
    """
    use_threads(config.threads)
    split = split_examples(config, config.out / "data")
    with Index.open(config.index) as index:
        inferencer = _inferencer(config, index, split, "auto")
        refreshes = inferencer.watch((config.out / _FINISHED).exists)
    log.info("the trainer has finished; mined %d times", refreshes)
    return config.out / "negatives"


def _train(config: AnceTrainConfig, role: Role, world: World, index: Index) -> Path:
    seed_everything(config.seed)
    use_threads(config.threads)

    # model
    model, master = load_model(config, world.device)
    tokenizer = RetrieverTokenizer(model.settings.question, model.settings.passage)

    # data: the index's passages first, so that mined rows are rows of the table
    if not world.is_main:
        world.barrier()  # the main process divides and tokenises, the others find it done
    split = split_examples(config, config.out / "data")
    key = _key(split, index)
    data = TrainingSet.build(
        split.training(),
        tokenizer,
        corpus=index.passages,
        max_negatives=config.negatives_depth or None,
        match_answers=config.mask_false_negatives,
        folder=config.out / "data",
        key=key,
    )
    if world.is_main:
        world.barrier()
    batches = make_batches(config, data)
    if config.schedule_of_refresh.is_never and not len(data.negatives.values):
        raise ConfigError(
            "refresh is never, and the training file has no negatives either",
            hint="set refresh, or mine negatives with `rag mine`",
        )
    log.info(
        "%d questions to train on, %d held out, a corpus of %d passages, %d batches of %d questions",
        *(len(data), len(split.held_out), data.corpus_rows, len(batches), batches.batch_size),
    )

    # exchange: snapshots out, negatives in
    form = replace(encoder_form(config, model), max_length=max(config.question_tokens, config.passage_tokens))
    inline = _inferencer(config, index, split, world.device) if role == "both" and world.is_main else None
    exchange = negatives_exchange(
        config,
        batches,
        lambda folder: export_model(folder, model, master.state(), form),
        key=key,
        world=world,
        inline=inline,
        in_line=role == "both",
        drift=_drift_meter(config, model, data) if config.schedule_of_refresh.watches_drift else None,
    )

    # optimisation
    objective = pairwise_objective if config.loss == "pairwise" else in_batch_objective

    def compute_loss(_: torch.nn.Module, batch: RetrieverBatch) -> Loss:
        return contrastive_step(model, batch, world, config.chunk_size, objective=objective)

    validation = HeldOutScores(config, split, tokenizer) if world.is_main and split.held_out else None
    result = fit(
        model,
        master,
        batches,
        compute_loss,
        fit_settings(config),
        config.out,
        evaluate=None if not split.held_out else lambda _: {} if validation is None else validation(model),
        hooks=exchange,
        world=world,
    )

    # export
    finished = config.out / "encoder"
    if world.is_main:
        described = {
            "training questions": len(data),
            "held-out questions": len(split.held_out),
            "passages of the corpus": data.corpus_rows,
            "files": ", ".join(path.name for path in config.train_files),
            "steps": result.chosen_step,
            "questions a step": batches.batch_size,
            "negatives": f"mined anew with the model itself, {config.refresh}",
            "temperature": model.temperature,
        }
        finish_run(config, model, result, encoder_form(config, model), described)
    world.barrier()
    return finished


def _key(split: ExampleSplit, index: Index) -> str:
    """Fingerprint of the examples and of the passages whose rows are exchanged."""
    content = json.dumps([split.key, index.manifest["passages"]])
    return hashlib.sha256(content.encode()).hexdigest()


def _inferencer(config: AnceTrainConfig, index: Index, split: ExampleSplit, device: str) -> Inferencer:
    examples = [TrainingExample.labelled(e.id, e.question, e.answers, e.positives) for e in split.training()]
    return Inferencer(
        config, index.passages, examples, split.held_out, key=_key(split, index),
        load=lambda folder: BiEncoder.load(folder, device=device),
    )  # fmt: skip


def _drift_meter(config: AnceTrainConfig, model: BiEncoderModel, data: TrainingSet) -> DriftMeter:
    probes = ProbeSet.draw(
        len(data), data.corpus_rows, questions=config.probe_questions, passages=config.probe_passages,
        seed=config.seed,
    )  # fmt: skip
    texts = [data.passages[row] for row in probes.passages.tolist()]

    @torch.no_grad()
    def encode() -> FloatArray:
        model.eval()
        vectors: FloatArray = model.encode_passages(texts).float().cpu().numpy()
        model.train()
        return vectors

    return DriftMeter(encode)
