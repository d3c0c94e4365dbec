"""Train a retriever with one vector per token (ColBERT)."""

from pathlib import Path

from retrievers.training.config import ColbertTrainConfig
from retrievers.training.recipe import train_bi_encoder


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
