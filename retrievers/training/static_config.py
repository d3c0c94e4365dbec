"""Configuration of static encoders; reading it imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from rag.training.config import Rate
from retrievers.training.config import SEARCHED, ExamplesConfig


class StaticTrainConfig(ExamplesConfig):
    """The whole configuration of `train_static`.

    Attributes:
        index: a built index with one vector per passage: its encoder is the teacher.
        train_files: training examples; without any, only sentences of the corpus are trained on.
        corpus: source of the sentences: an index, which needs no vectors, or files of documents; without one
            they come from `index`.
        batch_size: questions in a step, and sentences of the corpus.
        hard_negatives: mined passages beside each question's positive.
        validation_passages: size of the pool that is searched at a validation; 0 is the whole index.
        dim: size of the vectors, at most the teacher's.
    """

    recipe: ClassVar[str] = "static"
    trains: ClassVar[str] = "retrievers.training.static:train_static"
    measured: ClassVar[tuple[str, ...]] = ("average_rank", *SEARCHED)
    free: ClassVar[frozenset[str]] = ExamplesConfig.free | {"validation_passages"}

    index: Path
    train_files: tuple[Path, ...] = ()
    corpus: tuple[Path, ...] = ()
    name: str = Field(default="static-encoder", min_length=1)
    batch_size: int = Field(default=1024, ge=2)
    hard_negatives: int = Field(default=1, ge=0)
    validation_passages: int = Field(default=30_000, ge=0)
    dim: int = Field(default=256, ge=2)
    learning_rate: Rate = 1e-2
    epochs: float = Field(default=2, gt=0)
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    precision: Literal["auto", "bf16", "fp32"] = "fp32"
    clip_norm: float = Field(default=100.0, gt=0)

    @property
    def validates(self) -> bool:
        """Whether there are held-out questions."""
        return bool(self.train_files) and super().validates
