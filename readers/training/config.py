"""The configuration of `rag train reader`; its defaults are the recipe of the shipped weights."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.config import Config

__all__ = ["ReaderStage", "ReaderTrainConfig"]


class ReaderStage(Config):
    """A part of the run: how many questions, beside how many negatives, and how long the texts may be.

    Attributes:
        epochs: passes over the training questions; fractions are allowed.
        negatives: retrieved passages without the answer beside each gold paragraph.
        no_answer_fraction: share of the groups whose gold paragraph is left out.
        max_tokens: longest row; longer paragraphs are cropped to a random window around the answer.
        full_tokens: longest row of those examples that are spared the crop.
        full_fraction: share of examples that are spared.
        tokens_per_batch: padded tokens of one step.
    """

    epochs: float = Field(gt=0)
    negatives: int = Field(default=0, ge=0)
    no_answer_fraction: float = Field(default=0.0, ge=0, lt=1)
    max_tokens: int = Field(default=112, ge=16, le=512)
    full_tokens: int = Field(default=224, ge=16, le=512)
    full_fraction: float = Field(default=0.15, ge=0, le=1)
    tokens_per_batch: int = Field(default=4096, ge=64)

    @model_validator(mode="after")
    def _cross_check(self) -> ReaderStage:
        if self.full_tokens < self.max_tokens:
            raise ValueError(
                f"full_tokens ({self.full_tokens}) must be at least max_tokens ({self.max_tokens})"
            )
        if self.no_answer_fraction > 0 and self.negatives == 0:
            raise ValueError(
                "no_answer_fraction needs negatives: a group without its gold paragraph is empty"
            )
        if self.full_tokens * (1 + self.negatives) > self.tokens_per_batch:
            raise ValueError(
                f"one group of {1 + self.negatives} rows of {self.full_tokens} tokens exceeds "
                f"tokens_per_batch ({self.tokens_per_batch})"
            )
        return self


_RECIPE = (
    ReaderStage(epochs=0.85, max_tokens=108, full_tokens=224, full_fraction=0.12, tokens_per_batch=4096),
    ReaderStage(epochs=0.15, max_tokens=160, full_tokens=224, full_fraction=0.1, tokens_per_batch=4096),
    ReaderStage(
        epochs=0.17,
        negatives=1,
        no_answer_fraction=0.08,
        max_tokens=136,
        full_tokens=224,
        full_fraction=0.25,
        tokens_per_batch=5120,
    ),
)


class ReaderTrainConfig(Config):
    """Everything `train_reader` reads.

    Attributes:
        train_file: SQuAD v1.1 JSON (.gz).
        out: folder of the run: configuration, metrics, checkpoints and the finished reader.
        negatives_file: DPR-style results JSON (.gz) over the same questions, written by `rag retrieve`.
        held_out_file: results JSON that knows the held-out questions, from the retriever that will serve;
            ranking and calibration are fitted on it. None: `negatives_file`.
        test_file: SQuAD v1.1 JSON that the finished reader is scored on, for the model card only.
        name: of the finished reader.
        notes: a paragraph for the model card: what the configuration does not say.
        encoder: Hugging Face name or folder; None is the embedded `all-MiniLM-L6-v2`.
        validation_articles: articles held out of training, for every choice and for calibration.
        validation_questions: how many of their questions are scored during training.
        calibration_questions: how many of them ranking and calibration are fitted on.
        negatives_top_k: negatives are drawn from the first so many retrieved passages without the answer.
        freeze_word_embeddings: leave the word embedding matrix as it is.
        question_tokens, title_tokens: cuts of over-long questions and titles.
        answers: which spans count as right: the annotated one ("first"), or every place of the answer in the
            gold passage, summed ("mml") or the best of them ("hard-em").
    """

    recipe: ClassVar[str] = "reader"
    free: ClassVar[frozenset[str]] = frozenset(
        {
            *("threads", "save_every_s", "name", "notes"),
            *("held_out_file", "test_file", "calibration_questions"),
        }
    )

    train_file: Path
    out: Path
    negatives_file: Path | None = None
    held_out_file: Path | None = None
    test_file: Path | None = None
    name: str = "squad-minilm"
    notes: str = ""
    encoder: str | None = None
    stages: tuple[ReaderStage, ...] = Field(default=_RECIPE, min_length=1)
    validation_articles: int = Field(default=20, ge=1)
    validation_questions: int = Field(default=600, ge=1)
    calibration_questions: int = Field(default=1000, ge=1)
    negatives_top_k: int = Field(default=6, ge=1)
    freeze_word_embeddings: bool = True
    answers: Literal["first", "mml", "hard-em"] = "first"
    question_tokens: int = Field(default=40, ge=4, le=128)
    title_tokens: int = Field(default=16, ge=0, le=64)
    learning_rate: float = Field(default=2.5e-4, gt=0)
    warmup_fraction: float = Field(default=0.04, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    evaluate_every_steps: int = Field(default=1000, ge=0)
    save_every_s: float = Field(default=300.0, gt=0)
    threads: int | None = Field(default=None, ge=1)
    seed: int = 13

    @model_validator(mode="after")
    def _cross_check(self) -> ReaderTrainConfig:
        if self.negatives_file is None and any(stage.negatives for stage in self.stages):
            raise ValueError(
                "a stage asks for negatives, but there is no negatives_file (see `rag retrieve`)"
            )
        return self
