"""Settings of rounds of training; light, so that a command's help can show them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.config import Config
from retrievers.negatives.settings import GuidanceSettings

SignalName = Literal["attention", "likelihood", "span-likelihood", "relevance"]


class RoundsConfig(Config):
    """Settings of all rounds, beside the configuration of the retriever's training.

    Attributes:
        out: folder of all rounds.
        index: index that round 1 searches; its passages are indexed again in every round.
        questions: questions with answers; gold passages are not used.
        held_out: questions on which each round is evaluated; None holds out a share of `questions`.
        validation_fraction: share of `questions` that is held out if `held_out` is None.
        retriever: retriever for the first index, see `retrievers.open`. With "auto", round 1 trains on the
            results of all retrievers of the index, but round 0 is evaluated with its vectors alone, if it has
            vectors: the comparison of rounds is to show the gain of training, not that of BM25. Later indexes
            are searched by their vectors, or by the hybrid if round 0 is evaluated with that.
        top_k: number of passages retrieved per question.
        rounds: maximum number of rounds; they end early after a round without a significant gain.
        restart: train every round's retriever from the first encoder instead of the last round's.
        figure: top-k accuracy by which rounds are compared: questions with an answer in the first k passages.
    """

    recipe: ClassVar[str]
    index_type: ClassVar[Literal["flat", "plaid"]]
    free: ClassVar[frozenset[str]] = frozenset({"rounds"})

    out: Path
    index: Path
    questions: str
    held_out: str | None = None
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    retriever: str = "auto"
    top_k: int = Field(default=100, ge=2, le=1000)
    rounds: int = Field(default=4, ge=1)
    restart: bool = False
    figure: Literal["top1", "top5", "top20", "top100"] = "top20"


class DistillRoundsConfig(RoundsConfig):
    """Rounds in which a reader scores the passages, and a dense retriever learns the scores.

    Attributes:
        reader: reader or cross-encoder that scores the passages; None is the shipped reader.
        signal: score that the reader gives a passage, see `rag score`.
    """

    recipe: ClassVar[str] = "distill"
    index_type: ClassVar[Literal["flat", "plaid"]] = "flat"

    reader: str | None = None
    signal: SignalName = "span-likelihood"


class ColbertRoundsConfig(RoundsConfig, GuidanceSettings):
    """Rounds in which answers tell positives from negatives, and a ColBERT model learns these."""

    recipe: ClassVar[str] = "colbert"
    index_type: ClassVar[Literal["flat", "plaid"]] = "plaid"

    @model_validator(mode="after")
    def _cross_check_guidance(self) -> ColbertRoundsConfig:
        first = min(first for _, first in self.rules)
        if self.top_k < first:
            raise ValueError(
                f"top_k ({self.top_k}) is less than the rule of positives needs: raise it to {first}"
            )
        return self
