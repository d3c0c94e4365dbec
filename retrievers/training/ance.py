"""Train a dense retriever against its own index (ANCE): the recipe, top to bottom.

Trainer and inferencer are two processes that meet in the folder of the run, or one process that does both in
turn. Whichever is killed, starting it again is all there is to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from indexers.index import Index
from indexers.protocols import FloatArray
from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.data.examples import Candidate
from rag.training.fit import FitHooks
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.processes import Role, refresher_process
from rag.training.refresh.staleness import DriftMeter, ProbeSet
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.data import TrainingArrays
from retrievers.training.ance_refresher import Inferencer, MinedNegatives
from retrievers.training.bi_encoder import BiEncoderModel, encoder_form, export_model
from retrievers.training.config import AnceTrainConfig
from retrievers.training.losses import in_batch_objective, pairwise_objective
from retrievers.training.recipe import BiEncoderRun, contrastive_batches, examples_key, train_bi_encoder
from retrievers.training.split import ExampleSplit, split_examples

_SHOWN = (
    *("held_out/mrr", "held_out/top1", "held_out/top20"),
    *("refresh/overlap", "refresh/cosine", "refresh/entropy", "refresh/distinct"),
)

log = get_logger(__name__)


def train_ance(config: AnceTrainConfig, *, role: Role = "both") -> Path:
    """Train a retriever with negatives that its own snapshots find; see `train_model`.

    Writes `snapshots/` and `negatives/` too, where it meets the inferencer.

    Args:
        role: "both" mines in line whenever a refresh is due; "trainer" leaves that to `run_inferencer` in
            another process, and takes up what it publishes without waiting.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text
        Retrieval".

    Note:
        The optimiser is AdamW, not LAMB, and the learning rate is warmed up once, not at every refresh.
    """
    with Index.open(config.index) as index:
        return train_bi_encoder(
            config,
            make_batches=contrastive_batches,
            objective=pairwise_objective if config.loss == "pairwise" else in_batch_objective,
            corpus=index,
            make_hooks=lambda run, split, data, batches: _exchange(
                config, role, run, split, data, batches, index
            ),
            role=role,
            facts={"negatives": f"mined anew with the model itself, {config.refresh}"},
        )


def run_inferencer(config: AnceTrainConfig) -> Path:
    """Mine with every newer snapshot of the trainer that works in `config.out`, until it has finished.

    Returns:
        The folder of the published negatives.

    Raises:
        MismatchedArtifactError: the run there has another configuration, other examples or another corpus.
        ResourceError: another inferencer works there, or the trainer was killed or is stopped.
    """
    with refresher_process(config) as finished, Index.open(config.index) as index:
        split = split_examples(config, config.out / "data")
        inferencer = _inferencer(config, index, split, "auto")
        refreshes = inferencer.watch(finished)
    log.info("the trainer has finished; mined %d times", refreshes)
    return config.out / "negatives"


def _exchange(
    config: AnceTrainConfig,
    role: Role,
    run: BiEncoderRun,
    split: ExampleSplit,
    data: TrainingArrays,
    batches: RetrieverBatches,
    index: Index,
) -> FitHooks:
    """Snapshots out, negatives in."""
    if config.schedule_of_refresh.is_never and not len(data.negatives.values):
        raise ConfigError(
            "refresh is never, and the training file has no negatives either",
            hint="set refresh, or mine negatives with `rag mine`",
        )
    form = replace(encoder_form(config, run.model), max_length=config.query_tokens)
    in_line = role == "both"
    mines = in_line and run.world.is_main
    return negatives_exchange(
        config,
        batches,
        lambda folder: export_model(folder, run.model, run.master.state(), form),
        key=examples_key(split, index),
        world=run.world,
        refresher=_inferencer(config, index, split, run.world.device) if mines else None,
        in_line=in_line,
        drift=_drift_meter(config, run.model, data) if config.schedule_of_refresh.watches_drift else None,
    )


def negatives_exchange(
    config: AnceTrainConfig,
    batches: RetrieverBatches,
    write_encoder: Callable[[Path], object],
    *,
    key: str,
    in_line: bool,
    **more: Any,
) -> Exchange:
    """Hooks of the fit loop; the trainer never waits, except for the first negatives if its file has none.

    Args:
        batches: whose negatives are exchanged.
        write_encoder: puts the encoder as it is now into a folder; called in the main process.
        key: fingerprint of examples and corpus, the same in the inferencer.
        in_line, more: see `Exchange`.
    """

    def take_up(generation: Generation) -> Mapping[str, float]:
        mined = MinedNegatives.read(generation, examples=len(batches.data), key=key)
        batches.use_negatives(mined.table, generation.version)
        return {name: mined.figures[name] for name in _SHOWN if name in mined.figures}

    return Exchange(
        config,
        Generations(config.out / "snapshots"),
        Generations(config.out / "negatives"),
        lambda folder: write_encoder(folder / "encoder"),
        take_up,
        key=key,
        must_wait=lambda: not len(batches.data.negatives.values),
        in_line=in_line,
        show_steps=config.run.log_every_steps,
        **more,
    )


def _inferencer(config: AnceTrainConfig, index: Index, split: ExampleSplit, device: str) -> Inferencer:
    examples = [
        replace(e, candidates=tuple(Candidate(passage, "positive") for passage in e.positives))
        for e in split.training()
    ]
    return Inferencer(
        config, index.passages, examples, split.held_out, key=examples_key(split, index),
        load=lambda folder: BiEncoder.load(folder, device=device),
    )  # fmt: skip


def _drift_meter(config: AnceTrainConfig, model: BiEncoderModel, data: TrainingArrays) -> DriftMeter:
    probes = ProbeSet.draw(config, config.run.seed, questions=len(data), passages=data.corpus_rows)
    texts = [data.passages[row] for row in probes.passages.tolist()]

    @torch.no_grad()
    def encode() -> FloatArray:
        model.eval()
        vectors: FloatArray = model.encode_passages(texts).float().cpu().numpy()
        model.train()
        return vectors

    return DriftMeter(encode)
