"""Train a retriever towards a reader's scores of retrieved passages (distillation)."""

from functools import partial
from pathlib import Path
from typing import Any

from retrievers.examples.batches import Epochs, TargetBatches
from retrievers.examples.data import TrainingSet
from retrievers.training.losses import Objective
from retrievers.training.recipe import train_bi_encoder
from retrievers.training.recipe_configs import DistillTrainConfig
from retrievers.training.target_losses import ListMonitor, TargetLoss, kl_loss, margin_loss, target_objective


def train_distill(config: DistillTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_model`.

    Each question comes with its passages and their targets; no passage has to be labelled. Questions whose
    targets are all alike teach nothing and are left out.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question Answering",
        section 3; Izacard et al. 2022, "Atlas", section 2.2, for other signals and temperatures.
    """
    monitor = ListMonitor()
    return train_bi_encoder(
        config,
        make_batches=target_batches,
        objective=_objective(config, monitor),
        held_out_objective=_objective(config),
        make_hooks=lambda *_: monitor,
    )


def _objective(config: DistillTrainConfig, monitor: ListMonitor | None = None) -> Objective:
    temperature = config.target_temperature
    losses: dict[str, TargetLoss] = {
        "kl": partial(kl_loss, target_temperature=temperature),
        "kl-per-passage": partial(kl_loss, target_temperature=temperature, per_passage=True),
        "margin": lambda scores, targets, listed: margin_loss(
            scores, targets / temperature, listed, margin=config.margin
        ),
    }
    return target_objective(losses[config.loss], nll_weight=config.nll_weight, monitor=monitor)


def target_batches(config: Any, data: TrainingSet, examples: Epochs) -> TargetBatches:
    """Batches of questions with their lists; the configuration has `per_question` and `nll_weight`."""
    return TargetBatches(
        data, examples, per_question=config.data.per_question, labelled=config.nll_weight > 0
    )
