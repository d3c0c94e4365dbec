"""Train a dense retriever against its own index (ANCE)."""

from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.errors import ConfigError
from rag.training.config import RefreshedConfig
from rag.training.refresh import Refresh
from rag.training.run import Method
from retrievers.training.ance_refresher import negatives_refresher, take_up_negatives
from retrievers.training.bi_encoder import snapshot_writer
from retrievers.training.config import ContrastiveConfig
from retrievers.training.losses import in_batch_objective, pairwise_objective
from retrievers.training.recipe import BiEncoderRun, contrastive_batches, examples_key, train_bi_encoder


class AnceTrainConfig(ContrastiveConfig, RefreshedConfig):
    """Settings of `rag train ance`.

    Attributes:
        index: its passages are encoded again at every refresh.
        loss: "pairwise" scores each positive against its own mined passages only, as published; "in_batch"
            adds all other passages of the batch.
        depth: number of passages retrieved for each question.
        kept: maximum number of these that become negatives of the question, best first.
    """

    recipe: ClassVar[str] = "ance"
    trains: ClassVar[str] = "retrievers.training.ance:train_ance"

    index: Path
    loss: Literal["pairwise", "in_batch"] = "pairwise"
    depth: int = Field(default=200, ge=1)
    kept: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _cross_check_ance(self) -> "AnceTrainConfig":
        if self.depth < self.kept:
            raise ValueError(f"kept ({self.kept}) is more than depth ({self.depth}): raise depth")
        if not 1 <= self.hard_negatives <= self.kept:
            raise ValueError(f"hard_negatives ({self.hard_negatives}) are drawn from kept ({self.kept})")
        if self.pooling == "tokens":
            raise ValueError("pooling=tokens: negatives are mined with one vector per passage")
        if self.keeps_index:
            raise ValueError("frozen=passage: the index is encoded anew at every refresh, with both sides")
        return self


def train_ance(config: AnceTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train a retriever with negatives that its own snapshots retrieve; see `train_bi_encoder`.

    Also writes `refresh/`, the snapshots and the negatives.

    Args:
        encode: encodes the corpus at a refresh.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text
        Retrieval".

    Note:
        The optimiser is AdamW, not LAMB, and the learning rate is warmed up once, not at every refresh.
    """
    with Index.open(config.index) as index:
        return train_bi_encoder(config, partial(_method, index=index, encode=encode))


def _method(
    config: AnceTrainConfig, run: BiEncoderRun, *, index: Index, encode: EncodesCorpus | None
) -> Method:
    split, every = run.split_examples(), config.refresh_every_steps
    batches = contrastive_batches(config, split.training)
    has_negatives = split.training.has_negatives
    if not every and not has_negatives:
        raise ConfigError(
            "refresh_every_steps is 0, and the training file has no negatives either",
            hint="set refresh_every_steps, or mine negatives with `rag mine`",
        )
    key = examples_key(split, index)
    refresh = Refresh(
        config, negatives_refresher,
        snapshot_writer(config, run.model, run.master.state, max_length=config.longest_query),
        partial(take_up_negatives, batches, index.passages, key=key),
        key=key, world=run.world, encode=encode, must_wait=not has_negatives,
    )  # fmt: skip
    objective = pairwise_objective if config.loss == "pairwise" else in_batch_objective
    negatives = f"mined anew with the model itself every {every} steps" if every else "of the file"
    scores = run.held_out_scores(split.held_out, contrastive_batches)
    facts = {"negatives": negatives}
    return run.method(batches, run.loss(objective), split.held_out, scores, [refresh], facts)
