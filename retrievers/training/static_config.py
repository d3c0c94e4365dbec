"""Configuration of static encoders; reading it imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.training.config import Rate
from retrievers.training.config import SEARCHED, ExamplesConfig, MinedConfig


class StaticTrainConfig(ExamplesConfig, MinedConfig):
    """The whole configuration of `train_static`.

    Attributes:
        index: a built index with one vector per passage: its encoder is the teacher.
        train_files: training examples; without any, only sentences of the corpus are trained on.
        corpus: source of the sentences: an index, which needs no vectors, or files of documents; without one
            they come from `index`.
        start: folder of a static encoder with the teacher's tokenizer, or "static", to train on, in place of
            vectors fitted to the teacher's.
        refresh_every_steps: number of steps after which hard negatives are mined anew among the passages of
            `index`; 0 never does. The first are mined before the first step.
        loss: of questions: "in_batch", "pairwise" against their own mined passages only, as ANCE published
            it, or "teacher": the divergence from the distribution of the index's encoder over the passages of
            the batch.
        nll_weight: weight of an additional in-batch loss of the positives beside the teacher's.
        batch_size: questions in a step, and sentences of the corpus.
        hard_negatives: mined passages beside each question's positive.
        sentences: weight of the loss in which a sentence is the query for the passage that it was taken from;
            0 leaves sentences out; without questions only sentences are trained on.
        validation_passages: size of the pool that is searched at a validation; 0 is the whole index.
        dim: size of the vectors, at most the teacher's.
        fit_steps: iterations of the fit of the first vectors; 0 keeps the teacher's vectors of single tokens.
        stored: type of the numbers in the finished encoder's file; int8 has one scale per token.
    """

    recipe: ClassVar[str] = "static"
    trains: ClassVar[str] = "retrievers.training.static:train_static"
    measured: ClassVar[tuple[str, ...]] = ("average_rank", *SEARCHED)
    free: ClassVar[frozenset[str]] = ExamplesConfig.free | {"validation_passages"}

    index: Path
    train_files: tuple[Path, ...] = ()
    corpus: tuple[Path, ...] = ()
    start: str = ""
    name: str = Field(default="static-encoder", min_length=1)
    refresh_every_steps: int = Field(default=0, ge=0)
    loss: Literal["pairwise", "in_batch", "teacher"] = "in_batch"
    nll_weight: float = Field(default=0.0, ge=0)
    batch_size: int = Field(default=1024, ge=2)
    hard_negatives: int = Field(default=1, ge=0)
    sentences: float = Field(default=1.0, ge=0)
    validation_passages: int = Field(default=30_000, ge=0)
    dim: int = Field(default=256, ge=2)
    fit_steps: int = Field(default=20, ge=0)
    stored: Literal["float32", "float16", "int8"] = "float32"
    learning_rate: Rate = 1e-2
    epochs: float = Field(default=2, gt=0)
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    precision: Literal["auto", "bf16", "fp32"] = "fp32"
    clip_norm: float = Field(default=100.0, gt=0)

    @property
    def validates(self) -> bool:
        """Whether there are held-out questions."""
        return bool(self.train_files) and super().validates

    @model_validator(mode="after")
    def _cross_check_static(self) -> StaticTrainConfig:
        if not self.train_files and not self.sentences:
            raise ValueError("sentences=0 without train_files leaves nothing to learn from")
        if self.loss != "teacher" and self.nll_weight:
            raise ValueError(f'nll_weight belongs to loss "teacher", and loss is {self.loss}')
        if self.loss == "teacher" and not self.train_files:
            raise ValueError('loss "teacher" compares scores of training questions: give train_files')
        if self.refresh_every_steps:
            if not self.train_files:
                raise ValueError("refresh_every_steps mines for training questions: give train_files")
            if self.loss == "teacher":
                raise ValueError('loss "teacher" knows passages of files alone: set refresh_every_steps=0')
            self._check_drawn(self.hard_negatives)
        return self
