"""Train a dense retriever with in-batch and hard negatives (DPR)."""

from pathlib import Path

from retrievers.training.config import DprTrainConfig
from retrievers.training.recipe import train_bi_encoder


def train_dpr(config: DprTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`.

    Each question's positive is contrasted with the passages of all questions in its batch, and with
    the question's hard negatives.

    Source:
        Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering", section
        3.

    Note:
        Unlike in the paper, a question's other positives are left out of its negatives
        (`mask_false_negatives`); passages that answer it are when negatives are mined.
    """
    return train_bi_encoder(config)
