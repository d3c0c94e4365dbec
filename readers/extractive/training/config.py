"""The configuration of `rag train reader`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rag.config import Config
from rag.training.config import OptimConfig, RunConfig, TrainConfig
from readers.extractive.training.losses import Normalisation, SpanObjective


class TrainingSet(Config):
    """Questions to learn from, or to calibrate on.

    Attributes:
        questions: file of any known format; results of `rag retrieve` or FiD's files carry their passages.
        retrieved: results of `rag retrieve` for these questions: further passages.
        serving: results of the retriever that will serve, for the held-out questions, on which ranking and
            calibration are fitted; None: `retrieved`, or the passages of the questions.
        positives: passages that teach an answer: the "gold" ones of the set; all that "match", whatever the
            set says of them; "both"; or "auto": gold where a question has them, else match.
        weight: how often its questions come up, against once an epoch.
        held_out: share of its articles that is not learnt from, for every choice; 0: none.
        paths: learn from several gold passages joined to one text (`readers.paths`), and from joined ones of
            which one at least is not gold; sets of one gold passage a question have none.
        max_answer_words: longer answers do not count, nor does a question that has no other; 0: any. NQ-open
            has at most five, NQ's own spans are often longer: who learns from these says too much.
        unanswerable: questions without answers are learnt from too: their passages hold none. SQuAD 2.0, and
            documents that do not say what is asked.
        window_words: gold passages are cut into windows of so many words, of which those without the answer
            are negatives, the likest to the question first; 0: they stay whole. For sets whose questions come
            with a long document.
        where: only questions whose record has these values in these fields, such as `{split: train}`.
        name: in figures; by default that of the file.
    """

    questions: Path
    retrieved: Path | None = None
    serving: Path | None = None
    positives: Literal["auto", "gold", "match", "both"] = "auto"
    weight: float = Field(default=1.0, ge=0)
    held_out: float = Field(default=0.045, ge=0, lt=1)
    paths: bool = False
    max_answer_words: int = Field(default=0, ge=0)
    unanswerable: bool = False
    window_words: int = Field(default=0, ge=0)
    where: Mapping[str, str] = Field(default_factory=dict)
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, given: Any) -> Any:
        return {"questions": given} if isinstance(given, str | Path) else given

    @property
    def label(self) -> str:
        """Its name in figures."""
        return self.name or f"{self.questions.resolve().parent.name}/{self.questions.name.split('.')[0]}"


class ReaderStage(Config):
    """A part of the run: how many questions, beside how many negatives, and how long the texts may be.

    Attributes:
        epochs: passes over the training questions; fractions are allowed.
        positives: most positive passages of one question in a group.
        negatives: passages without the answer beside one positive.
        no_answer_fraction: share of the groups whose positives are left out.
        max_tokens: longest row; longer paragraphs are cropped to a random window around the answer.
        full_tokens: longest row of those examples that are spared the crop.
        full_fraction: share of examples that are spared.
        tokens_per_batch: padded tokens of one step.
    """

    epochs: float = Field(gt=0)
    positives: int = Field(default=1, ge=1)
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
            raise ValueError("no_answer_fraction needs negatives: a group without its positive is empty")
        if self.positives > 1 + self.negatives:
            raise ValueError(f"positives ({self.positives}) do not fit a group of {1 + self.negatives}")
        if self.full_tokens * (1 + self.negatives) > self.tokens_per_batch:
            raise ValueError(
                f"one group of {1 + self.negatives} rows of {self.full_tokens} tokens exceeds "
                f"tokens_per_batch ({self.tokens_per_batch})"
            )
        return self


class ReaderModelConfig(Config):
    """The network and its input.

    Attributes:
        encoder: Hugging Face name or folder of an encoder, or of a reader to go on from; None is the embedded
            `all-MiniLM-L6-v2`.
        answer_types: the network also says "yes" and "no", which need no span.
        skim_layer: a head on this layer says early where the answer may be; 0: there is none.
        average: reader (name or folder) → its share in the finished weights; the trained ones have the rest.
            With the reader it starts from, less is forgotten (Wortsman et al. 2022, "Robust fine-tuning of
            zero-shot models"); with others, "model soups".
        dropout: of hidden states and attention weights.
        freeze_word_embeddings: leave the word embedding matrix as it is.
        question_tokens, title_tokens: cuts of over-long questions and titles, of the finished reader too.
    """

    encoder: str | None = None
    answer_types: bool = False
    skim_layer: int = Field(default=0, ge=0)
    average: dict[str, float] = Field(default_factory=dict)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    freeze_word_embeddings: bool = True
    question_tokens: int = Field(default=64, ge=4, le=128)
    title_tokens: int = Field(default=16, ge=0, le=64)

    @field_validator("average")
    @classmethod
    def _leaves_a_rest(cls, shares: dict[str, float]) -> dict[str, float]:
        if min(shares.values(), default=1.0) <= 0 or sum(shares.values()) >= 1:
            raise ValueError(f"shares are {shares}, expected numbers above 0 that leave a rest of 1")
        return shares


class ObjectiveConfig(Config):
    """Settings of the loss, see `readers.extractive.training.losses`.

    Attributes:
        spans: which spans of a question count.
        normalisation: over what the softmax runs.
        selection_weight: of the loss of passage selection; 0: the network has no passage logit.
        skim_weight: of the loss of the early head, if there is one.
        fact_weight: of the loss of supporting sentences, which sets with `paths` teach; 0: none are marked.
        hard_em_steps: τ: at step t "hard-em" is used with probability min(t / τ, 0.8), the sum otherwise; 0:
            always.
    """

    spans: SpanObjective = "first"
    normalisation: Normalisation = "shared"
    selection_weight: float = Field(default=0.0, ge=0)
    skim_weight: float = Field(default=0.2, ge=0)
    fact_weight: float = Field(default=0.0, ge=0)
    hard_em_steps: int = Field(default=4000, ge=0)

    @model_validator(mode="after")
    def _cross_check(self) -> ObjectiveConfig:
        if self.normalisation == "passage" and not self.selection_weight:
            raise ValueError(
                "normalisation 'passage' makes spans of different passages incomparable: it needs a "
                "selection_weight above 0"
            )
        return self


_RECIPE = (
    ReaderStage(epochs=0.85, max_tokens=108, full_tokens=224, full_fraction=0.12, tokens_per_batch=4096),
    ReaderStage(epochs=0.15, max_tokens=160, full_tokens=224, full_fraction=0.1, tokens_per_batch=4096),
)


class ReaderTrainConfig(TrainConfig):
    """Everything `train_reader` reads.

    Attributes:
        train: question sets, with mixing weights.
        calibrate: further sets on which ranking and calibration are fitted, and nothing is learnt.
        test_file: questions with gold passages that the finished reader is scored on, for the card only.
        stages: parts of the run, one after the other.
        validation_questions: how many held-out questions are scored during training.
        calibration_questions: how many of each set ranking and calibration are fitted on.
        effort_sets: names of the sets that efforts are chosen on; all by default. Where a corpus rarely holds
            the answer, less can be read at no loss, and nothing be learnt about what it loses elsewhere.
        effort: which of its efforts the finished reader takes unless told otherwise.
        negatives_top_k: negatives are drawn from a question's first so many passages without the answer.
    """

    recipe: ClassVar[str] = "reader"
    measured: ClassVar[tuple[str, ...]] = ("em", "f1")
    free: ClassVar[frozenset[str]] = frozenset(
        {"name", "notes", "calibrate", "test_file", "calibration_questions", "effort_sets", "effort"}
    )

    train: tuple[TrainingSet, ...] = Field(min_length=1)
    calibrate: tuple[TrainingSet, ...] = ()
    test_file: Path | None = None
    name: str = "reader"
    model: ReaderModelConfig = ReaderModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    stages: tuple[ReaderStage, ...] = Field(default=_RECIPE, min_length=1)
    validation_questions: int = Field(default=600, ge=1)
    calibration_questions: int = Field(default=1000, ge=1)
    effort_sets: tuple[str, ...] = ()
    effort: Literal["full", "normal", "low"] = "full"
    negatives_top_k: int = Field(default=6, ge=1)
    optim: OptimConfig = OptimConfig(
        learning_rate=2.5e-4, warmup_fraction=0.04, weight_decay=0.01, clip_norm=1.0
    )
    run: RunConfig = RunConfig(validate_every_steps=1000)

    @model_validator(mode="after")
    def _efforts_have_sets(self) -> ReaderTrainConfig:
        known = [one.label for one in (*self.train, *self.calibrate)]
        if twice := sorted({label for label in known if known.count(label) > 1}):
            raise ValueError(f"two sets are called {twice[0]!r}: give them names (name: …)")
        if unknown := sorted(set(self.effort_sets) - set(known)):
            raise ValueError(f"effort_sets names {unknown[0]!r}, the sets are {', '.join(known)}")
        return self
