"""Settings of rounds of training; light, so that a command's help can show them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, TypedDict

from pydantic import Field

from retrievers.negatives.settings import GuidanceSettings

SignalName = Literal["attention", "likelihood", "span-likelihood", "relevance"]


class RoundsConfig(GuidanceSettings):
    """Settings of all rounds, beside the configuration of the retriever's training.

    Attributes:
        out: folder of all rounds.
        method: "distill": a reader scores the passages, and a dense retriever learns the scores;
            "colbert": answers tell positives from negatives, and a ColBERT model learns these.
        index: index that round 1 searches; its passages are indexed again in every round.
        questions: questions with answers; gold passages are not used.
        held_out: questions on which each round is evaluated; None: a share of `questions`.
        validation_fraction: this share.
        retriever: finds the passages of round 1, see `retrievers.open`. Later rounds and
            evaluations search with what was trained, round 0 too if the index has such vectors.
        top_k: number of passages retrieved per question.
        rounds: number of rounds.
        restart: train every round's retriever from the first encoder instead of the last round's.
        reader: for "distill": reader or cross-encoder that scores the passages; None is the shipped
            reader.
        signal: for "distill": score that the reader gives a passage, see `rag score`.
    """

    recipe: ClassVar[str] = "rounds"

    out: Path
    method: Literal["distill", "colbert"]
    index: Path
    questions: str
    held_out: str | None = None
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    retriever: str = "auto"
    top_k: int = Field(default=100, ge=2, le=1000)
    rounds: int = Field(default=2, ge=1)
    restart: bool = False
    reader: str | None = None
    signal: SignalName = "span-likelihood"


class RoundsOptions(TypedDict, total=False):
    """Fields of `RoundsConfig` that `rag.train_rounds` does not name."""

    held_out: str | None
    validation_fraction: float
    retriever: str
    top_k: int
    rounds: int
    restart: bool
    reader: str | None
    signal: SignalName
    positives: str
    negatives: int
