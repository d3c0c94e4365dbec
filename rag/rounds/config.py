"""What rounds of training are told; apart from them, because a command's help needs it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, get_args

from pydantic import Field

from indexers.presets import IndexType
from rag.config import Config
from rag.data.text import Profile

SignalName = Literal[
    "attention", "attention-norm", "likelihood", "leave-one-out", "span-likelihood", "relevance"
]  # fmt: skip
SIGNAL_NAMES: tuple[SignalName, ...] = get_args(SignalName)


class RoundsConfig(Config):
    """What `rag.rounds.rounds` reads beside the configuration of the retriever's training.

    Attributes:
        out: folder of all rounds.
        index: what round 1 searches; its passages are indexed anew in every round.
        questions: with answers; gold passages are not used.
        held_out: questions that judge each round; without them a share of those to learn from.
        validation_fraction: share of the questions that is held out if no others are given to judge.
        train_questions: only so many of them, the first; 0 is all.
        retriever: how the first index is searched, see `retrievers.open`. With "auto" round 1 learns from all
            that the index can find, but round 0 is judged by its vectors alone, where it has such: the rounds
            are to tell what training gained, not what BM25 adds.
        next_retriever: how later indexes are searched, for figures and for what the next round learns from;
            "auto" is their vectors alone, or the first one's hybrid again where round 0 is judged by that.
        index_encoder: of the first index, if it moved.
        top_k: passages retrieved a question.
        rounds: most that are run; fewer if one gains nothing beyond noise.
        restart: train every round's retriever from the first encoder; otherwise from the last round's.
        figure: held-out figure by which rounds are judged: questions with an answer in the top k.
        profile: rules of answers, as in `rag evaluate`.
        index_type: of the indexes that are built.
    """

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
    index_type: Literal[IndexType, "plaid"] = "flat"


class DistillationRoundsConfig(RoundsConfig):
    """The same where a reader judges the passages.

    Attributes:
        reader: what judges the passages (a reader or cross-encoder); None is the shipped reader.
        signal: what is learnt of the reader, see `rag score`.
    """

    reader: str | None = None
    signal: SignalName = "span-likelihood"
