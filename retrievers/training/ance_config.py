"""Configurations of ANCE and ADORE: training against an index that the model itself is searched with."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rag.core.errors import ConfigError
from rag.training.refresh import RefreshSchedule
from retrievers.training.config import ContrastiveTrainConfig, DataConfig, ModelConfig, RetrieverTrainConfig

__all__ = ["AdoreTrainConfig", "AnceTrainConfig"]


class AnceTrainConfig(ContrastiveTrainConfig):
    """Everything `train_ance` reads, in both roles.

    Attributes:
        index: its passages are the corpus that is encoded again at every refresh, and searched.
        loss: "pairwise" scores each positive against its own mined passages only, as published; "in_batch"
            adds all other passages of the batch.
        refresh: when a snapshot of the model is handed over to be mined with: "never", "every 500",
            "0:500,2000:2000" (from step:every), "drift>0.05" (1 - mean cosine of probe passages).
        poll_every_steps: how often the trainer looks for newer negatives and measures drift.
        poll_s: how often the inferencer looks for a newer snapshot, in seconds.
        depth: passages searched for each question.
        kept: at most so many of them become a question's negatives, best first.
        skip: so many of the best are passed over first.
        answer_filter: leave out passages that hold one of the question's answers.
        refresh_questions: questions mined for in one refresh, taken in turn; 0 is all.
        probe_questions: questions of the staleness figures.
        probe_passages: passages of the staleness figures and of drift.
        keep_generations: published snapshots and negatives that stay on disk.

    Example:
        >>> config = AnceTrainConfig(out="run", train_files=("train.json",), index="index")
        >>> config.loss, config.schedule_of_refresh.every(0)
        ('pairwise', 500)
    """

    recipe: ClassVar[str] = "ance"

    index: Path
    loss: Literal["pairwise", "in_batch"] = "pairwise"
    refresh: str = "every 500"
    poll_every_steps: int = Field(default=100, ge=1)
    poll_s: float = Field(default=5.0, gt=0)
    depth: int = Field(default=200, ge=1)
    kept: int = Field(default=100, ge=1)
    skip: int = Field(default=0, ge=0)
    answer_filter: bool = True
    refresh_questions: int = Field(default=0, ge=0)
    probe_questions: int = Field(default=500, ge=1)
    probe_passages: int = Field(default=1000, ge=2)
    keep_generations: int = Field(default=2, ge=1)

    @property
    def schedule_of_refresh(self) -> RefreshSchedule:
        """`refresh`, parsed."""
        return RefreshSchedule.parse(self.refresh)

    @field_validator("refresh")
    @classmethod
    def _check_refresh(cls, value: str) -> str:
        try:
            return str(RefreshSchedule.parse(value))
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _cross_check_ance(self) -> AnceTrainConfig:
        if self.depth - self.skip < self.kept:
            raise ValueError(
                f"kept ({self.kept}) is more than what remains of depth ({self.depth}) after skip "
                f"({self.skip}): raise depth"
            )
        if not 1 <= self.data.hard_negatives <= self.kept:
            raise ValueError(f"hard_negatives ({self.data.hard_negatives}) are drawn from kept ({self.kept})")
        return self


class AdoreTrainConfig(RetrieverTrainConfig):
    """Everything `train_adore` reads: only the question encoder learns, the index stays as it is.

    Attributes:
        index: built index with vectors; `question_encoder` None takes the encoder it was built with.
        depth: passages searched for each question at every step, under the current question encoder.
        metric_cut: rank from which on the loss sees no difference (reciprocal rank 0); None: `depth`.

    Example:
        >>> AdoreTrainConfig(out="run", train_files=("train.json",), index="index").depth
        200
    """

    recipe: ClassVar[str] = "adore"

    index: Path
    model: ModelConfig = ModelConfig(shared=False)
    depth: int = Field(default=200, ge=2)
    metric_cut: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _cross_check_adore(self) -> AdoreTrainConfig:
        usual = {**DataConfig().flat(), **ModelConfig(shared=False).flat()}
        names = (
            *("shared", "passage_encoder", "projection_dim", "pooling", "normalize", "layout"),
            *("query_prefix", "passage_prefix", "chunk_size", "validation_passages"),
        )
        said = self.flat()
        given = [f"{name}={said[name]}" for name in names if said[name] != usual[name]]
        if given:
            raise ValueError(f"{', '.join(given)}: the index decides this, and only questions are encoded")
        if self.run.select_by in ("nll", "average_rank"):
            raise ValueError(f"select_by={self.run.select_by} is not measured here: choose mrr or a top-k")
        return self
