"""Train a retriever with one vector per token (ColBERT), from labelled passages or towards float targets."""

from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.core.errors import ConfigError
from rag.data.examples import Needed
from rag.runtime.model_files import model_folder, tower_folders
from rag.training.run import Method
from retrievers.encoders.settings import read_settings
from retrievers.training.config import SEARCHED, ContrastiveConfig
from retrievers.training.distill import target_batches
from retrievers.training.losses import Objective, in_batch_objective, pairwise_objective
from retrievers.training.recipe import BiEncoderRun, contrastive_batches, train_bi_encoder
from retrievers.training.split import split_examples
from retrievers.training.target_losses import kl_loss, target_objective


class ColbertTrainConfig(ContrastiveConfig):
    """Settings of `rag train colbert`.

    Attributes:
        projection_dim: size of the token vectors; 0 keeps the projection of the folder.
        question_tokens: length of a question in tokens: longer ones are truncated, shorter ones padded with
            [MASK].
        train_files: examples with positives and hard negatives (`rag mine`), or with targets for "kl"
            (`rag score`, from a cross-encoder or a reader).
        per_question: number of a question's passages with targets in a step, drawn anew in each epoch; None
            means all.
        loss: "softmax" contrasts each positive with its hard negatives and all passages of the batch;
            "pairwise" with each of its hard negatives alone; "kl" is the KL divergence from the targets.
        target_temperature: temperature by which the targets are divided, for "kl".
        nll_weight: weight of the loss "softmax" added to "kl", for questions with a positive in their list.
    """

    recipe: ClassVar[str] = "colbert"
    trains: ClassVar[str] = "retrievers.training.colbert:train_colbert"
    measured: ClassVar[tuple[str, ...]] = ("nll", *SEARCHED)

    batch_size: int = Field(default=32, ge=1)
    per_question: int | None = Field(default=None, ge=2)
    loss: Literal["softmax", "pairwise", "kl"] = "softmax"
    target_temperature: float = Field(default=1.0, gt=0)
    nll_weight: float = Field(default=0.0, ge=0)
    pooling: Literal["tokens"] = "tokens"
    projection_dim: int = Field(default=128, ge=0, le=128)
    question_tokens: int = Field(default=32, ge=4, le=4096)
    passage_tokens: int = Field(default=180, ge=8, le=4096)

    @property
    def needs(self) -> Needed:
        """Positives, or targets for the loss that follows them."""
        return "targets" if self.loss == "kl" else "positives"

    @model_validator(mode="after")
    def _cross_check_colbert(self) -> "ColbertTrainConfig":
        if self.loss == "pairwise" and not self.hard_negatives:
            raise ValueError("loss=pairwise is made of hard negatives: set hard_negatives")
        if self.nll_weight and self.loss != "kl":
            raise ValueError(f"nll_weight is only for loss=kl, and loss is {self.loss}: set nll_weight=0")
        if self.normalize is False:
            raise ValueError("normalize is false, and search by MaxSim needs unit vectors: leave it at auto")
        return self


def train_colbert(config: ColbertTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`. The finished encoder is a folder
    of sentence-transformers' `MultiVectorEncoder`.

    Score of question and passage is MaxSim of their token vectors; questions are filled up with masks.

    Source:
        Khattab and Zaharia 2020, "ColBERT", section 3.3; for n-way softmax and distillation Santhanam et al.
        2022, "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late Interaction", section 3.2.

    Raises:
        ConfigError: the encoder to start from has token vectors of any length, and indexes need unit vectors.
    """
    for name in dict.fromkeys((config.question_encoder, config.passage_encoder or config.question_encoder)):
        for folder in dict.fromkeys(tower_folders(model_folder(name))):
            stored = read_settings(folder)
            if config.normalize == "auto" and stored.pooling == "tokens" and not stored.normalize:
                raise ConfigError(
                    f"{folder} makes token vectors of any length (normalize: false), and search by MaxSim "
                    "needs unit vectors",
                    hint="set normalize=true to train it with them, or start from another encoder",
                )
    return train_bi_encoder(config, _method)


def _method(config: ColbertTrainConfig, run: BiEncoderRun) -> Method:
    split = split_examples(config, run.out / "data")
    make_batches = target_batches if config.loss == "kl" else contrastive_batches
    objective: Objective = pairwise_objective if config.loss == "pairwise" else in_batch_objective
    if config.loss == "kl":
        loss = partial(kl_loss, target_temperature=config.target_temperature)
        objective = target_objective(loss, nll_weight=config.nll_weight)
    held_out_objective = objective if config.loss == "kl" else in_batch_objective
    scores = run.held_out_scores(split, make_batches, held_out_objective)
    batches = make_batches(config, run.training_set(split))
    return run.method(batches, run.loss(objective), split.held_out, scores)
