"""Train a retriever and a Fusion-in-Decoder reader in the same steps (EMDR², PDist)."""

from functools import partial
from pathlib import Path

from indexers.protocols import EncodesCorpus
from rag.joint.config import EmdrTrainConfig
from rag.joint.losses import fused_loss
from rag.joint.together import train_together


def train_emdr2(config: EmdrTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train both, or resume the run that `config.out` holds: see `train_together` for what is written.

    `document_side` decides how an index that grows stale is dealt with: "reencode" rebuilds it every
    `refresh_every_steps` steps, "rerank" retrieves more passages than are read and keeps
    the best by fresh vectors, "frozen" trains the question side alone.

    Source:
        Sachan et al. 2021, "End-to-End Training of Multi-Document Reader and Retriever for Open-Domain
        Question Answering"; Izacard et al. 2022, "Atlas", sections 2.2 and 2.4.
    """
    objective = partial(
        fused_loss, config.objective, marginal=config.marginal, target_temperature=config.target_temperature,
        batch_tokens=config.batch_tokens or 8192,
    )  # fmt: skip
    return train_together(config, objective, {"mode": "fid"}, encode=encode)
