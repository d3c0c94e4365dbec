"""Train a retriever towards a reader's scores of retrieved passages (distillation)."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rag.data.examples import Needed
from rag.training.run import Method
from retrievers.examples.batches import Epochs, TargetBatches
from retrievers.examples.data import ExampleTable
from retrievers.training.config import EncodedConfig, ExamplesConfig
from retrievers.training.recipe import BiEncoderRun, train_bi_encoder
from retrievers.training.target_losses import TargetLoss, kl_loss, margin_loss, target_objective


class DistillTrainConfig(EncodedConfig, ExamplesConfig):
    """Settings of `rag train distill`.

    Attributes:
        train_files: examples whose passages have targets (`rag score` writes them).
        batch_size: questions in a step; each brings its list.
        per_question: passages of a list, drawn anew at each visit; None takes all that have a target.
        loss: "kl" is the divergence from the targets' distribution, a mean over questions; "kl-per-passage"
            is the published reduction, which divides by the number of passages too; "margin" is a hinge loss
            on pairs of passages, ordered by their targets.
        target_temperature: temperature by which targets are divided; scores are divided by
            `temperature`.
    """

    recipe: ClassVar[str] = "distill"
    trains: ClassVar[str] = "retrievers.training.distill:train_distill"

    batch_size: int = Field(default=32, ge=1)
    per_question: int | None = Field(default=None, ge=2)
    loss: Literal["kl", "kl-per-passage", "margin"] = "kl"
    target_temperature: float = Field(default=1.0, gt=0)

    @property
    def needs(self) -> Needed:
        """Targets."""
        return "targets"


def train_distill(config: DistillTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`.

    Each question comes with its passages and their targets; no passage has to be labelled. Questions whose
    targets are all alike teach nothing and are left out.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question Answering",
        section 3; Izacard et al. 2022, "Atlas", section 2.2, for other signals and temperatures.
    """
    return train_bi_encoder(config, _method)


def _method(config: DistillTrainConfig, run: BiEncoderRun) -> Method:
    split, temperature = run.split_examples(), config.target_temperature
    losses: dict[str, TargetLoss] = {
        "kl": partial(kl_loss, target_temperature=temperature),
        "kl-per-passage": partial(kl_loss, target_temperature=temperature, per_passage=True),
        "margin": lambda scores, targets, listed: margin_loss(scores, targets / temperature, listed),
    }
    objective = target_objective(losses[config.loss])
    batches = target_batches(config, split.training)
    scores = run.held_out_scores(split.held_out, target_batches, objective)
    return run.method(batches, run.loss(objective), split.held_out, scores)


def target_batches(config: Any, data: ExampleTable, examples: Epochs | None = None) -> TargetBatches:
    """Batches of questions with their lists of `config.per_question` passages."""
    examples = Epochs.of(config, len(data)) if examples is None else examples
    return TargetBatches(data, examples, per_question=config.per_question)
