"""Settings of mining: source, ranks, and filters."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.config import DEFAULT_SEED, Config
from rag.core.errors import ConfigError


class MiningSettings(Config):
    """Settings of `mine`; kept beside the result.

    Attributes:
        source: what proposes candidates: BM25, the index's model, or both, taken in turns by rank.
        first_rank, last_rank: candidates are the hits of these ranks, 1-based, both included.
        per_question: maximum number of negatives per question.
        margin: keep only passages that the model scores below this share of the positive's score; None keeps
            all.
        weak_positives: where no gold passage is known, take the best of the first 100 hits that
            holds an answer.
        seed: random seed.

    Source: Karpukhin et al. 2020 (BM25 negatives without an answer; weak positives); Moreira et al. 2024,
        NV-Retriever (margin to the positive's score).
    """

    recipe: ClassVar[str] = "mine"

    source: Literal["bm25", "dense", "both"] = "bm25"
    first_rank: int = Field(default=1, ge=1)
    last_rank: int = Field(default=100, ge=1)
    per_question: int = Field(default=10, ge=1)
    margin: float | None = Field(default=None, gt=0, le=1)
    weak_positives: bool = True
    seed: int = Field(default=DEFAULT_SEED, ge=0)

    @model_validator(mode="after")
    def _cross_check(self) -> MiningSettings:
        if self.last_rank < self.first_rank:
            raise ValueError(
                f"last_rank is {self.last_rank}, expected at least first_rank ({self.first_rank})"
            )
        return self


def parse_ranks(text: str) -> tuple[int, int]:
    """First and last rank of "first:last", or of "last".

    Raises:
        ConfigError: it is neither.

    Example:
        >>> parse_ranks("5:100"), parse_ranks("30")
        ((5, 100), (1, 30))
    """
    first, _, last = text.rpartition(":")
    try:
        ranks = int(first or 1), int(last)
    except ValueError as error:
        raise ConfigError(f"ranks {text!r}: expected first:last, for example 5:100") from error
    if not 1 <= ranks[0] <= ranks[1]:
        raise ConfigError(f"ranks {text!r}: they start at 1, and the first is not behind the last")
    return ranks


class GuidanceSettings(Config):
    """Settings of relevance-guided supervision: which passages of a ranking become positives and negatives.

    Attributes:
        positives: rules "b,k", separated by spaces: the first b of the best k passages that hold an answer;
            a passage that meets any rule is a positive.
        negatives: passages without an answer that are drawn for each positive, half of them from the first
            hundred, the others from the first thousand.

    Source:
        Khattab, Potts and Zaharia 2021, "Relevance-guided Supervision for OpenQA with ColBERT", section 3.3.
    """

    recipe: ClassVar[str] = "guidance"

    positives: str = "3,50"
    negatives: int = Field(default=20, ge=1)

    @model_validator(mode="after")
    def _check_positives(self) -> GuidanceSettings:
        if not self.rules or any(not 1 <= most <= first for most, first in self.rules):
            raise ValueError(
                f"positives {self.positives!r}: expected rules b,k with 1 ≤ b ≤ k, as in '3,50 1,1000'"
            )
        return self

    @property
    def rules(self) -> tuple[tuple[int, int], ...]:
        """The rules as pairs; empty if one of them cannot be read.

        Example:
            >>> GuidanceSettings(positives="3,50 1,1000").rules
            ((3, 50), (1, 1000))
        """
        pairs = [rule.split(",") for rule in self.positives.split()]
        are_pairs = all(len(pair) == 2 and pair[0].isdigit() and pair[1].isdigit() for pair in pairs)
        return tuple((int(most), int(first)) for most, first in pairs) if are_pairs else ()
