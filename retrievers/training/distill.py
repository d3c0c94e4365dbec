"""Train a retriever towards a reader's scores of retrieved passages (distillation)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from retrievers.examples.batches import Epochs, TargetBatches
from retrievers.examples.data import ExampleTable
from retrievers.training.config import DistillTrainConfig
from retrievers.training.losses import kl_loss, margin_loss
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
    losses: dict[str, Callable[..., Tensor]] = {"kl": kl_loss, "margin": margin_loss}
    loss = partial(losses[config.loss], target_temperature=config.target_temperature)
    return train_bi_encoder(
        config, partial(learn_from_examples, loss=loss, make_batches=target_batches)
    )


def target_batches(config: Any, data: ExampleTable, *, once: bool = False) -> TargetBatches:
    """Batches of questions with their lists of `config.per_question` passages."""
    return TargetBatches(
        data, Epochs.of(config, len(data), once=once), per_question=config.per_question
    )
