"""Train a retriever with one vector per token (ColBERT)."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from retrievers.training.config import ContrastiveConfig
from retrievers.training.recipe import train_bi_encoder


class ColbertTrainConfig(ContrastiveConfig):
    """Settings of `rag train colbert`.

    Attributes:
        question_tokens: length of a question in tokens: longer ones are truncated, shorter ones
            padded with [MASK].
    """

    recipe: ClassVar[str] = "colbert"
    trains: ClassVar[str] = "retrievers.training.colbert:train_colbert"
    measured: ClassVar[tuple[str, ...]] = ("nll",)

    batch_size: int = Field(default=32, ge=1)
    pooling: Literal["tokens"] = "tokens"
    normalize: Literal[True] = True  # search by MaxSim needs unit vectors
    projection_dim: int = Field(default=128, ge=0, le=128)
    question_tokens: int = Field(default=32, ge=4, le=4096)
    passage_tokens: int = Field(default=180, ge=8, le=4096)


def train_colbert(config: ColbertTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`. The finished encoder is a folder
    of sentence-transformers' `MultiVectorEncoder`.

    Score of question and passage is MaxSim of their token vectors; questions are filled up with
    masks. Each positive is contrasted with its hard negatives and all passages of the batch.

    Source:
        Khattab and Zaharia 2020, "ColBERT", section 3.3; for the softmax over many passages
        Santhanam et al. 2022, "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late
        Interaction", section 3.2.
    """
    return train_bi_encoder(config)
