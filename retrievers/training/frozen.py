"""Training the question side against an index whose vectors stay as they are."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from indexers.index import Index
from indexers.protocols import EncoderIdentity, IntArray
from indexers.reissue import reissue_index
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.manifest import MANIFEST_NAME
from rag.training.distributed import World
from rag.training.fit import FitHooks
from retrievers.encoders.bi_encoder import TOWER_SEPARATOR, BiEncoder
from retrievers.training.config import RetrieverTrainConfig
from retrievers.training.model import BiEncoderModel

__all__ = ["FrozenIndex", "like_index", "reissue", "score_rows"]

ConfigT = TypeVar("ConfigT", bound=RetrieverTrainConfig)


def like_index(config: ConfigT, index: Index, world: World) -> ConfigT:
    """The configuration with everything the index decides.

    Raises:
        ConfigError: the index has no vectors, or several processes were started.
        MismatchedArtifactError: its encoder is not the one it was built with any more.
    """
    world.refuse_several("only questions are encoded")
    identity = index.encoder_identity
    if identity is None:
        raise ConfigError(f"{config.index} has no vectors", hint="build it with --retriever dense")
    index.check_encoder(BiEncoder.load_like(identity, precision="fp32").identity)
    passages, _, questions = identity.name.partition(TOWER_SEPARATOR)
    said = {
        "question_encoder": config.model.question_encoder or questions or passages,
        "passage_encoder": passages,
        "passage_tokens": identity.max_length,
        **{name: getattr(identity, name) for name in ("pooling", "normalize", "layout")},
        **{name: getattr(identity, name) for name in ("query_prefix", "passage_prefix")},
    }
    return config.model_copy(update={"model": config.model.replaced(**said)})


def score_rows(model: BiEncoderModel, index: Index, queries: Tensor, rows: IntArray) -> Tensor:
    """Scores (B, K), over the temperature, of queries' vectors (B, D) and the vectors in `rows` (B, K) of the
    index; −inf where a row is −1. Differentiable in the queries."""
    assert index.embeddings is not None
    distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
    vectors = torch.from_numpy(index.embeddings.rows(distinct)).to(queries.device)  # (U, D)
    chosen = vectors[torch.from_numpy(places.reshape(rows.shape)).to(queries.device)]  # (B, K, D)
    scores = torch.einsum("bd,bkd->bk", queries, chosen) * model.scale
    return scores.masked_fill(torch.from_numpy(rows < 0).to(queries.device), float("-inf"))


class FrozenIndex(FitHooks):
    """Which index is searched, in every record."""

    def __init__(self, version: str) -> None:
        self._version = version

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """Its version; it has no age, because passages are encoded as they were."""
        return {"index_version": self._version}

    def extra_state(self) -> Mapping[str, Any]:
        """Its version."""
        return {"index_version": self._version}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Refuse to go on with another index."""
        if state["index_version"] != self._version:
            raise MismatchedArtifactError(
                f"the run was started against index version {state['index_version']}, this one is "
                f"{self._version}",
                hint="give the same index, or choose another --out",
            )


def reissue(config: RetrieverTrainConfig, finished: Path) -> None:
    """The index for the trained encoder, made anew unless it is there already."""
    encoder = BiEncoder.load(finished)
    target = config.out / "index"
    if target.exists():
        if (target / MANIFEST_NAME).exists() and _identity(target) == encoder.identity:
            return
        shutil.rmtree(target)
    assert config.index is not None
    reissue_index(config.index, target, encoder, seed=config.run.seed)
    encoder.close()


def _identity(directory: Path) -> EncoderIdentity | None:
    with Index.open(directory, verify="none") as index:
        return index.encoder_identity
