"""Train a retriever of one vector a token (ColBERT), from labelled passages or towards float targets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rag.core.errors import ConfigError
from rag.data.examples import Needed
from rag.runtime.model_files import model_folder, tower_folders
from retrievers.encoders.settings import read_settings
from retrievers.examples.batches import Epochs
from retrievers.examples.data import TrainingArrays
from retrievers.training.config import ContrastConfig, EncodedTrainConfig, ModelConfig
from retrievers.training.distill import target_batches
from retrievers.training.losses import Objective, in_batch_objective, pairwise_objective
from retrievers.training.recipe import Batches, contrastive_batches, train_bi_encoder
from retrievers.training.target_losses import kl_loss, target_objective


class ColbertDataConfig(ContrastConfig):
    """Data settings of ColBERT training: contrastive, or lists of scored passages for the loss "kl".

    Attributes:
        per_question: number of a question's passages with targets in a step, drawn anew in each epoch; None
            means all.
    """

    batch_size: int = Field(default=32, ge=1)
    per_question: int | None = Field(default=None, ge=2)


class ColbertModelConfig(ModelConfig):
    """Model settings of late interaction, with one vector per token.

    Attributes:
        projection_dim: size of the token vectors; 0 keeps the projection of the folder.
        question_tokens: length of a question in tokens: longer ones are truncated, shorter ones padded with
            [MASK].
    """

    pooling: Literal["tokens"] = "tokens"
    projection_dim: int = Field(default=128, ge=0, le=128)
    question_tokens: int = Field(default=32, ge=4, le=4096)
    passage_tokens: int = Field(default=180, ge=8, le=4096)


class ColbertTrainConfig(EncodedTrainConfig):
    """Settings of `rag train colbert`.

    Attributes:
        train_files: examples with positives and hard negatives (`rag mine`), or with targets for "kl"
            (`rag score`, from a cross-encoder or a reader).
        loss: "softmax" contrasts each positive with its hard negatives and all passages of the batch;
            "pairwise" with each of its hard negatives alone; "kl" is the KL divergence from the targets.
        target_temperature: temperature by which the targets are divided, for "kl".
        nll_weight: weight of the loss "softmax" added to "kl", for questions with a positive in their list.
    """

    recipe: ClassVar[str] = "colbert"
    measured: ClassVar[tuple[str, ...]] = ("nll", "mrr", "top1", "top5", "top20", "top100")

    loss: Literal["softmax", "pairwise", "kl"] = "softmax"
    target_temperature: float = Field(default=1.0, gt=0)
    nll_weight: float = Field(default=0.0, ge=0)
    data: ColbertDataConfig = ColbertDataConfig()
    model: ColbertModelConfig = ColbertModelConfig()

    @property
    def needs(self) -> Needed:
        """Positives, or targets for the loss that follows them."""
        return "targets" if self.loss == "kl" else "positives"

    @property
    def matches_answers(self) -> bool:
        """Only labelled passages have negatives that may be false."""
        return self.data.mask_false_negatives and (self.loss != "kl" or self.nll_weight > 0)

    @property
    def objective(self) -> Objective:
        """The loss."""
        if self.loss == "kl":
            loss = partial(kl_loss, target_temperature=self.target_temperature)
            return target_objective(loss, nll_weight=self.nll_weight)
        return pairwise_objective if self.loss == "pairwise" else in_batch_objective

    @model_validator(mode="after")
    def _cross_check_colbert(self) -> ColbertTrainConfig:
        if self.loss == "pairwise" and not self.data.hard_negatives:
            raise ValueError("loss=pairwise is made of hard negatives: set hard_negatives")
        if self.nll_weight and self.loss != "kl":
            raise ValueError(f"nll_weight is only for loss=kl, and loss is {self.loss}: set nll_weight=0")
        if self.model.normalize is False:
            raise ValueError("normalize is false, and search by MaxSim needs unit vectors: leave it at auto")
        return self


def train_colbert(config: ColbertTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_model`. The finished encoder is in PyLate's layout.

    Score of question and passage is MaxSim of their token vectors; questions are filled up with masks.

    Source:
        Khattab and Zaharia 2020, "ColBERT", section 3.3; for n-way softmax and distillation Santhanam et al.
        2022, "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late Interaction", section 3.2.

    Note:
        Passages that hold an answer are left out of a question's negatives (`mask_false_negatives`).

    Raises:
        ConfigError: the encoder to start from keeps its token vectors' lengths, which no index does.
    """
    _check_start(config.model)
    objective = config.objective
    return train_bi_encoder(config, make_batches=_batches, objective=objective, held_out_objective=objective)


def _check_start(model: ColbertModelConfig) -> None:
    for name in dict.fromkeys((model.question_encoder, model.passage_encoder or model.question_encoder)):
        for folder in dict.fromkeys(tower_folders(model_folder(name))):
            found = read_settings(folder)
            if model.normalize == "auto" and found.pooling == "tokens" and not found.normalize:
                raise ConfigError(
                    f"{folder} makes token vectors of any length (normalize: false), and search by MaxSim "
                    "needs unit vectors",
                    hint="set normalize=true to train it with them, or start from another encoder",
                )


def _batches(config: Any, data: TrainingArrays, examples: Epochs) -> Batches:
    return (target_batches if config.loss == "kl" else contrastive_batches)(config, data, examples)
