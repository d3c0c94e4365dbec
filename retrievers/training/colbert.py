"""Train a retriever with one vector per token (ColBERT)."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.core.errors import ConfigError
from rag.runtime.model_files import model_folder, tower_folders
from rag.training.run import Method
from retrievers.encoders.settings import read_settings
from retrievers.training.config import SEARCHED, ContrastiveConfig
from retrievers.training.losses import in_batch_objective
from retrievers.training.recipe import BiEncoderRun, contrastive_batches, train_bi_encoder


class ColbertTrainConfig(ContrastiveConfig):
    """Settings of `rag train colbert`.

    Attributes:
        question_tokens: length of a question in tokens: longer ones are truncated, shorter ones padded with
            [MASK].
    """

    recipe: ClassVar[str] = "colbert"
    trains: ClassVar[str] = "retrievers.training.colbert:train_colbert"
    measured: ClassVar[tuple[str, ...]] = ("nll", *SEARCHED)

    batch_size: int = Field(default=32, ge=1)
    pooling: Literal["tokens"] = "tokens"
    projection_dim: int = Field(default=128, ge=0, le=128)
    question_tokens: int = Field(default=32, ge=4, le=4096)
    passage_tokens: int = Field(default=180, ge=8, le=4096)

    @model_validator(mode="after")
    def _cross_check_colbert(self) -> "ColbertTrainConfig":
        if self.normalize is False:
            raise ValueError("normalize is false, and search by MaxSim needs unit vectors: leave it at auto")
        return self


def train_colbert(config: ColbertTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`. The finished encoder is a folder
    of sentence-transformers' `MultiVectorEncoder`.

    Score of question and passage is MaxSim of their token vectors; questions are filled up with masks. Each
    positive is contrasted with its hard negatives and all passages of the batch.

    Source:
        Khattab and Zaharia 2020, "ColBERT", section 3.3; for the softmax over many passages Santhanam et al.
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
    split = run.split_examples()
    batches = contrastive_batches(config, split.training)
    scores = run.held_out_scores(split.held_out, contrastive_batches)
    return run.method(batches, run.loss(in_batch_objective), split.held_out, scores)
