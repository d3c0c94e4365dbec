"""The configuration of `rag train generator`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from rag.config import Config
from rag.training.config import Count, LoraConfig, Rate, Share, TrainConfig
from readers.training import FineTuningConfig


class GeneratorStage(Config):
    """A part of the run.

    Attributes:
        steps: number of optimiser steps.
        batch_size: questions of one batch.
        passages: number of passages per question.
        passage_tokens: maximum input length; longer passages are truncated at the end.
        ensure_answer: if none of the best-ranked passages contains an answer but a later one does,
            the later one takes the last place (with one passage: the best that contains the answer
            is read).
        no_answer_fraction: share of the questions that are read with passages without the answer
            alone.
    """

    steps: int = Field(ge=1)
    batch_size: Count = 64
    passages: Count = 1
    passage_tokens: int = Field(default=250, ge=8)
    ensure_answer: bool = False
    no_answer_fraction: Share = 0.0


class GeneratorTrainConfig(FineTuningConfig, LoraConfig):
    """Settings of `rag train generator`.

    Attributes:
        train_files: questions with passages: results of `rag retrieve`, FiD's files, training
            examples of `rag mine` or DPR's.
        validation_file: held-out questions with passages; None holds out `validation_questions` of
            the training questions.
        model: sequence-to-sequence or causal checkpoint to start from; None makes one from
            `encoder` (`readers.generative.warm_start`).
        encoder: folder of `rag train reader`; None and "shipped" are the reader that ships.
        decoder_layers: number of decoder layers of a generator made from a reader; None: as many as
            its.
        template: format of an input, with {question}, {title} and {text} as placeholders; None: the
            model's own, see `GeneratorSettings`.
        question_tokens, answer_tokens: maximum lengths of question and answer.
        beams: number of beams of the finished reader.
        no_answer: target text where none of the passages read holds an answer; None trains to say
            the answer all the same, as published.
        stages: one after the other; `epochs` stretches or shortens them all.
        frozen: beginnings of parameter names (whole words between dots) that are not trained.
        batch_tokens: tokens of passages that are encoded at a time.
        checkpoint_layers: compute activations again instead of keeping them; for large models.
        validation_questions: number of questions held out for validation; as many passages of each
            are read as in the last stage.
    """

    recipe: ClassVar[str] = "generator"
    measured: ClassVar[tuple[str, ...]] = ("em", "f1", "silent")
    free: ClassVar[frozenset[str]] = TrainConfig.free | {"beams", "batch_tokens"}

    train_files: tuple[Path, ...] = Field(min_length=1)
    validation_file: Path | None = None
    model: str | None = None
    encoder: str | None = None
    decoder_layers: int | None = Field(default=None, ge=1)
    dropout: Share = 0.1
    name: str = "generator"
    template: str | None = None
    question_tokens: int = Field(default=64, ge=4)
    answer_tokens: Count = 50
    beams: Count = 1
    no_answer: str | None = None
    stages: tuple[GeneratorStage, ...] = Field(min_length=1)
    frozen: tuple[str, ...] = ()
    batch_tokens: Count = 8192
    checkpoint_layers: bool = False
    validation_questions: Count = 300
    learning_rate: Rate = 1e-4

    @model_validator(mode="after")
    def _cross_check(self) -> GeneratorTrainConfig:
        if self.no_answer is None and any(stage.no_answer_fraction for stage in self.stages):
            raise ValueError(
                'no_answer is not given: what should be said without one, for example "no answer"?'
            )
        if self.model is not None and (self.encoder is not None or self.decoder_layers):
            raise ValueError(
                "model is a whole checkpoint: encoder and decoder_layers are for a warm start"
            )
        if self.lora and (self.model is None or self.frozen):
            raise ValueError(
                "lora adapts a checkpoint whose weights all stay: give model, and leave frozen out"
            )
        return self

    def train_model(self) -> Path:
        """See `readers.generative.training.recipe.build`."""
        from rag.training.run import train
        from readers.generative.training.recipe import build

        return train(self, partial(build, self), "reader")
