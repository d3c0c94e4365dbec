"""The configuration of `rag train reader`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rag.config import Config
from rag.training.config import Count, Rate, Share, TrainConfig, Warmup
from readers.extractive.settings import EffortName
from readers.training import TaughtConfig

SpanObjective = Literal["first", "marginal"]
Normalisation = Literal["shared", "passage"]


class TrainingSet(Config):
    """Questions to train on, or to calibrate on.

    Positives of a question are its gold passages that hold an answer, or else all passages that
    hold one.

    Attributes:
        questions: file of any known format; results of `rag retrieve` or FiD's files carry their
            passages.
        retrieved: file with results of `rag retrieve` for these questions: further passages to
            train on; to calibrate, they are read alone, and should be of the retriever that the
            reader will be used with.
        weight: how often its questions are drawn, relative to once per epoch.
        held_out: share of its articles that is held out for validation, calibration and tuning; 0:
            none.
        max_answer_words: longer answers are ignored, as are questions that have no other; 0 means
            no limit. Answers in NQ-open have at most five words. The spans of NQ are often longer,
            and a reader trained on them gives overlong answers.
        unanswerable: train also on questions without answers, as having none in their passages; for
            sets such as SQuAD 2.0.
        labelled: whether its answers are learnt; if not, its questions are learnt from the teacher
            alone.
        window_words: gold passages are split into windows of this many words; windows without the
            answer are negatives, the most similar to the question first. 0 does not split them. For
            sets whose questions come with a long document.
        where: only questions whose record has these values in these fields, such as `{split:
            train}`.
        name: name of the set in reported figures; by default that of the file.
    """

    questions: Path
    retrieved: Path | None = None
    weight: float = Field(default=1.0, ge=0)
    held_out: Share = 0.045
    max_answer_words: int = Field(default=0, ge=0)
    unanswerable: bool = False
    labelled: bool = True
    window_words: int = Field(default=0, ge=0)
    where: Mapping[str, str] = Field(default_factory=dict)
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"questions": value} if isinstance(value, str | Path) else value

    @property
    def label(self) -> str:
        """Name of the set in reported figures."""
        folder = self.questions.resolve().parent.name
        return self.name or f"{folder}/{self.questions.name.split('.')[0]}"


class ReaderStage(Config):
    """A part of the run, with its own group size and text lengths.

    A group is the passages of one question that are scored together.

    Attributes:
        epochs: passes over the training questions; fractions are allowed.
        negatives: number of passages without the answer in a group, beside one that holds it.
        no_answer_fraction: share of the groups whose positive is left out.
        max_tokens: maximum length of a row (question and passage); longer passages are cropped to a
            random window around the answer.
        full_tokens: maximum length of a row of the examples that are not cropped.
        full_fraction: share of examples that are not cropped.
        tokens_per_batch: number of tokens, with padding, of one step.
    """

    epochs: float = Field(gt=0)
    negatives: int = Field(default=0, ge=0)
    no_answer_fraction: Share = 0.0
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
                "no_answer_fraction is above 0, and so needs negatives: set negatives to 1 or more"
            )
        if self.full_tokens * (1 + self.negatives) > self.tokens_per_batch:
            raise ValueError(
                f"one group of {1 + self.negatives} rows of {self.full_tokens} tokens exceeds "
                f"tokens_per_batch ({self.tokens_per_batch})"
            )
        return self


class ReaderTrainConfig(TaughtConfig):
    """Settings of `rag train reader`.

    Attributes:
        train: question sets, with mixing weights.
        calibrate: further sets on which ranking and calibration are fitted, but the network is not
            trained.
        encoder: Hugging Face name or folder of an encoder, or of a reader to go on from, or
            "shipped" for the reader that ships; None is the embedded `all-MiniLM-L6-v2`.
        answer_types: the network can also answer "yes" and "no", without a span.
        freeze_word_embeddings: leave the word embedding matrix as it is.
        question_tokens, title_tokens: lengths that questions and titles are truncated to, in the
            finished reader too.
        spans: which spans of a question count in the loss (`readers.extractive.training.losses`):
            the "first", annotated one, or by their sum all right ones of its positive passages
            ("marginal").
        normalisation: set of positions over which the softmax is taken.
        selection_weight: weight of the passage selection loss; with 0 the network has no passage
            logit.
        teacher: folder of a larger reader of `rag train reader`, or "shipped": it reads every row
            too, and how likely it finds each span, each passage and "not here" is learnt beside the
            answers.
        stages: parts of the run, one after the other.
        validation_questions: number of held-out questions that are scored during training.
        calibration_questions: number of questions per set on which ranking and calibration are
            fitted.
        effort: how much the finished reader reads by default.
        negatives_top_k: negatives are drawn from this many of a question's best-ranked passages
            without the answer.
    """

    recipe: ClassVar[str] = "reader"
    measured: ClassVar[tuple[str, ...]] = ("em", "f1")
    free: ClassVar[frozenset[str]] = TrainConfig.free | {
        "calibrate",
        "calibration_questions",
        "effort",
    }

    train: tuple[TrainingSet, ...] = Field(min_length=1)
    calibrate: tuple[TrainingSet, ...] = ()
    name: str = "reader"
    encoder: str | None = None
    answer_types: bool = False
    freeze_word_embeddings: bool = True
    question_tokens: int = Field(default=64, ge=4, le=128)
    title_tokens: int = Field(default=16, ge=0, le=64)
    spans: SpanObjective = "first"
    normalisation: Normalisation = "shared"
    selection_weight: float = Field(default=0.0, ge=0)
    stages: tuple[ReaderStage, ...] = Field(min_length=1)
    validation_questions: Count = 600
    calibration_questions: Count = 1000
    effort: EffortName = "full"
    negatives_top_k: Count = 6
    learning_rate: Rate = 2.5e-4
    warmup_steps: Warmup = 0.04
    validate_every_steps: int = Field(default=1000, ge=0)

    @model_validator(mode="after")
    def _cross_check(self) -> ReaderTrainConfig:
        if self.normalisation == "passage" and not self.selection_weight:
            raise ValueError(
                "normalisation 'passage' makes spans of different passages incomparable: it needs a "
                "selection_weight above 0"
            )
        labels: set[str] = set()
        for part in (*self.train, *self.calibrate):
            if part.label in labels:
                raise ValueError(f"two sets are called {part.label!r}: give them names (name: …)")
            labels.add(part.label)
        if self.teacher is None and not all(part.labelled for part in self.train):
            raise ValueError(
                "a set with labelled: false is learnt from a teacher: name it as teacher"
            )
        return self

    def train_model(self) -> Path:
        """See `readers.extractive.training.recipe.build`."""
        from rag.training.run import train
        from readers.extractive.training.recipe import build

        reason = "a reader is trained by one"
        return train(self, partial(build, self), "reader", one_process=reason)
