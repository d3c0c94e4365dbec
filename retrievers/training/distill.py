"""Train a retriever towards a reader's scores of retrieved passages (distillation)."""

from functools import partial
from pathlib import Path
from typing import Any

from retrievers.examples.batches import Epochs, TargetBatches
from retrievers.examples.data import ExampleTable
from retrievers.training.config import DistillTrainConfig
from retrievers.training.losses import TargetLoss, kl_loss, margin_loss, target_objective
from retrievers.training.recipe import learn_from_examples, train_bi_encoder


def train_distill(config: DistillTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`.

    Each question comes with its passages and their targets; no passage has to be labelled.
    Questions whose targets are all alike teach nothing and are left out.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question
        Answering", section 3; Izacard et al. 2022, "Atlas", section 2.2, for other signals and
        temperatures.
    """
    losses: dict[str, TargetLoss] = {
        "kl": partial(kl_loss, target_temperature=config.target_temperature),
        "kl-per-passage": partial(
            kl_loss, target_temperature=config.target_temperature, per_passage=True
        ),
        "margin": lambda scores, targets, listed: margin_loss(
            scores, targets / config.target_temperature, listed
        ),
    }
    objective = target_objective(losses[config.loss])
    return train_bi_encoder(
        config, partial(learn_from_examples, objective=objective, make_batches=target_batches)
    )


def target_batches(config: Any, data: ExampleTable, *, once: bool = False) -> TargetBatches:
    """Batches of questions with their lists of `config.per_question` passages."""
    return TargetBatches(
        data, Epochs.of(config, len(data), once=once), per_question=config.per_question
    )
