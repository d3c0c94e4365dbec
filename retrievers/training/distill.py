"""Train a retriever towards a reader's scores of retrieved passages (distillation)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rag.data.examples import Needed
from rag.training.fit import FitHooks
from retrievers.examples.batches import Epochs, TargetBatches
from retrievers.examples.data import TrainingArrays
from retrievers.training.config import DataConfig, EncodedTrainConfig
from retrievers.training.losses import Objective
from retrievers.training.recipe import train_bi_encoder
from retrievers.training.target_losses import (
    ListMonitor,
    TargetLoss,
    kl_loss,
    margin_loss,
    target_objective,
)


class DistillDataConfig(DataConfig):
    """Data settings of distillation: each question has a list of passages with target scores.

    Attributes:
        batch_size: questions in a step; each brings its list.
        per_question: passages of a list, drawn anew at each visit; None takes all that have a target.
    """

    batch_size: int = Field(default=32, ge=1)
    per_question: int | None = Field(default=None, ge=2)


class DistillTrainConfig(EncodedTrainConfig):
    """Settings of `rag train distill`.

    Attributes:
        train_files: examples whose passages have targets (`rag score` writes them).
        loss: "kl" is the divergence from the targets' distribution, a mean over questions; "kl-per-passage"
            is the published reduction, which divides by the number of passages too; "margin" is a hinge loss
            on pairs of passages, ordered by their targets.
        target_temperature: temperature by which targets are divided; scores are divided by
            `model.temperature`.
        margin: factor of the required score difference for loss "margin": times the difference of targets.
        nll_weight: weight of an additional in-batch loss of the labelled positives; 0 leaves it out.
    """

    recipe: ClassVar[str] = "distill"
    loss: Literal["kl", "kl-per-passage", "margin"] = "kl"
    target_temperature: float = Field(default=1.0, gt=0)
    margin: float = Field(default=1.0, gt=0)
    nll_weight: float = Field(default=0.0, ge=0)
    data: DistillDataConfig = DistillDataConfig()

    @property
    def needs(self) -> Needed:
        """Targets."""
        return "targets"

    @property
    def matches_answers(self) -> bool:
        """Only the likelihood of positives has negatives that may be false."""
        return self.nll_weight > 0

    def objective(self, monitor: ListMonitor | None = None) -> Objective:
        """The loss."""
        temperature = self.target_temperature
        losses: dict[str, TargetLoss] = {
            "kl": partial(kl_loss, target_temperature=temperature),
            "kl-per-passage": partial(kl_loss, target_temperature=temperature, per_passage=True),
            "margin": lambda scores, targets, listed: margin_loss(
                scores, targets / temperature, listed, margin=self.margin
            ),
        }
        return target_objective(losses[self.loss], nll_weight=self.nll_weight, monitor=monitor)


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
        objective=config.objective(monitor),
        held_out_objective=config.objective(),
        make_hooks=lambda *_: _Hooks(monitor),
    )


def target_batches(config: Any, data: TrainingArrays, examples: Epochs) -> TargetBatches:
    """Batches of questions with their lists; the configuration has `per_question` and `nll_weight`."""
    return TargetBatches(
        data, examples, per_question=config.data.per_question, labelled=config.nll_weight > 0
    )


class _Hooks(FitHooks):
    """How even p(z|q) is, in every record."""

    def __init__(self, monitor: ListMonitor) -> None:
        self._monitor = monitor

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """Its entropy, as a share of the largest."""
        return {"entropy": round(self._monitor.entropy, 4)}
