"""Settings of rounds of training; light, so that a command's help can show them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, get_args

from pydantic import Field, model_validator

from rag.config import Config
from rag.data.text import Profile
from retrievers.negatives.settings import GuidanceSettings

SignalName = Literal[
    "attention", "attention-norm", "likelihood", "leave-one-out", "span-likelihood", "relevance"
]  # fmt: skip
SIGNAL_NAMES: tuple[SignalName, ...] = get_args(SignalName)


class RoundsConfig(Config):
    """Settings of all rounds, beside the configuration of the retriever's training.

    Attributes:
        out: folder of all rounds.
        index: index that round 1 searches; its passages are indexed anew in every round.
        questions: questions with answers; gold passages are not used.
        held_out: questions that judge each round; without them a share of those to learn from.
        validation_fraction: share of the questions that is held out if no others are given to judge.
        train_questions: learn from the first so many questions; 0: from all.
        retriever: how the first index is searched, see `retrievers.open`. With "auto" round 1 learns from all
            that the index can find, but round 0 is judged by its vectors alone, where it has such: the rounds
            are to tell what training gained, not what BM25 adds.
        next_retriever: how later indexes are searched, for figures and for what the next round learns from;
            "auto" is their vectors alone, or the first one's hybrid again where round 0 is judged by that.
        index_encoder: folder of the first index's encoder, if it moved.
        top_k: passages retrieved per question.
        rounds: most rounds; fewer if one gains nothing beyond noise.
        restart: train every round's retriever from the first encoder; otherwise from the last round's.
        figure: held-out figure by which rounds are judged: questions with an answer in the first k passages.
        profile: rules of answers, as in `rag evaluate`.
    """

    recipe: ClassVar[str]
    index_type: ClassVar[Literal["flat", "plaid"]]
    free: ClassVar[frozenset[str]] = frozenset({"rounds"})

    out: Path
    index: Path
    questions: str
    held_out: str | None = None
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    train_questions: int = Field(default=0, ge=0)
    retriever: str = "auto"
    next_retriever: str = "auto"
    index_encoder: str | None = None
    top_k: int = Field(default=100, ge=2, le=1000)
    rounds: int = Field(default=4, ge=1)
    restart: bool = False
    figure: Literal["top1", "top5", "top20", "top100"] = "top20"
    profile: Profile = "nq_open"


class DistillRoundsConfig(RoundsConfig):
    """Rounds in which a reader scores the passages, and a dense retriever learns the scores.

    Attributes:
        reader: reader or cross-encoder that scores the passages; None is the shipped reader.
        train_reader: preset or file of recipe reader or generator: train one in every round instead.
        signal: score that the reader gives a passage, see `rag score`.
    """

    recipe: ClassVar[str] = "distill"
    index_type: ClassVar[Literal["flat", "plaid"]] = "flat"

    reader: str | None = None
    train_reader: str | None = None
    signal: SignalName = "span-likelihood"


class ColbertRoundsConfig(RoundsConfig):
    """Rounds in which answers tell positives from negatives, and a ColBERT model learns these.

    Attributes:
        guidance: which passages become positives and negatives.
    """

    recipe: ClassVar[str] = "colbert"
    index_type: ClassVar[Literal["flat", "plaid"]] = "plaid"

    guidance: GuidanceSettings = GuidanceSettings()

    @model_validator(mode="after")
    def _cross_check_guidance(self) -> ColbertRoundsConfig:
        first = min(first for _, first in self.guidance.rules)
        if self.top_k < first:
            raise ValueError(f"top_k ({self.top_k}) ends before the rule of positives: raise it to {first}")
        return self
