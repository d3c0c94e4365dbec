"""Train a retriever and a Fusion-in-Decoder reader in the same steps (EMDR², PDist, LOOP, ADist)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from rag.joint.losses import Fused, fused_loss
from rag.joint.together import train_together
from rag.joint.together_config import DocumentSide, JointTrainConfig
from rag.training.refresh.processes import Role
from readers.generative.marginal import Marginal


class EmdrTrainConfig(JointTrainConfig):
    """Settings of `rag train emdr2`.

    Attributes:
        objective: loss that trains the retriever with the reader's signal, see `rag.joint.losses`.
        marginal: for "emdr2": marginalise per token, as in the published code, or per whole answer.
        target_temperature: temperature of the reader's signal, for the other objectives.
    """

    recipe: ClassVar[str] = "emdr2"

    name: str = Field(default="emdr2", min_length=1)
    document_side: DocumentSide = "reencode"
    refresh: str = "500:500"
    objective: Fused = "emdr2"
    marginal: Marginal = "token"
    target_temperature: float = Field(default=1.0, gt=0)


def train_emdr2(config: EmdrTrainConfig, *, role: Role = "both") -> Path:
    """Train both, or resume the run that `config.out` holds: see `train_together` for what is written.

    Three answers to an index that grows stale, by `document_side`: "reencode" makes it anew (`refresh`, also
    as Atlas writes its schedule), "rerank" finds more than is read and takes the best by fresh vectors,
    "frozen" trains questions alone.

    Raises:
        DataError, ConfigError, MismatchedArtifactError: as `train_rag`.

    Source:
        Sachan et al. 2021, "End-to-End Training of Multi-Document Reader and Retriever for Open-Domain
        Question Answering"; Izacard et al. 2022, "Atlas", sections 2.2 and 2.4.
    """
    objective = partial(
        fused_loss, config.objective, marginal=config.marginal, target_temperature=config.target_temperature,
        batch_tokens=config.reader.batch_tokens or 8192,
    )  # fmt: skip
    return train_together(config, objective, {"mode": "fid"}, role=role)
