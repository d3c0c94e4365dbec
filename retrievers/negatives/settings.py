"""Settings of mining and of relevance-guided supervision; light, so that a command's help can show
them.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rag.config import DEFAULT_SEED, Config


class MiningSettings(Config):
    """Settings of `mine`; kept beside the result.

    Attributes:
        source: what proposes candidates: BM25, the index's model, or both, taken in turns by rank.
        ranks: ranks to take candidates from, first:last, both included.
        per_question: maximum number of negatives per question.
        margin: keep only passages that the model scores below this share of the positive's score;
            None keeps all.
        weak_positives: where no gold passage is known, take the best of the first 100 hits that
            holds an answer.
        seed: random seed.

    Source: Karpukhin et al. 2020 (BM25 negatives without an answer; weak positives); Moreira et al.
        2024, NV-Retriever (margin to the positive's score).
    """

    recipe: ClassVar[str] = "mine"

    source: Literal["bm25", "dense", "both"] = "bm25"
    ranks: str = "1:100"
    per_question: int = Field(default=10, ge=1)
    margin: float | None = Field(default=None, gt=0, le=1)
    weak_positives: bool = True
    seed: int = Field(default=DEFAULT_SEED, ge=0)

    @property
    def rank_range(self) -> range:
        """The ranks, 1-based."""
        first, _, last = self.ranks.rpartition(":")
        return range(int(first or 1), int(last) + 1)

    @field_validator("ranks")
    @classmethod
    def _check_ranks(cls, value: str) -> str:
        first, _, last = value.rpartition(":")
        if not (last.isdigit() and (first or "1").isdigit() and 1 <= int(first or 1) <= int(last)):
            raise ValueError("expected first:last, counted from 1, for example 5:100")
        return value


class GuidanceSettings(Config):
    """Settings of relevance-guided supervision: which passages of a ranking become positives and
    negatives.

    Attributes:
        positives: rules "b,k", separated by spaces: the first b of the best k passages that hold an
            answer; a passage that meets any rule is a positive.
        negatives: passages without an answer that are drawn for each positive, half of them from
            the first hundred, the others from the first thousand.

    Source:
        Khattab, Potts and Zaharia 2021, "Relevance-guided Supervision for OpenQA with ColBERT",
        section 3.3.
    """

    recipe: ClassVar[str] = "guidance"

    positives: str = "3,50"
    negatives: int = Field(default=20, ge=1)

    @property
    def rules(self) -> tuple[tuple[int, int], ...]:
        """The rules as pairs."""
        pairs = (rule.split(",") for rule in self.positives.split())
        return tuple((int(most), int(first)) for most, first in pairs)

    @field_validator("positives")
    @classmethod
    def _check_positives(cls, value: str) -> str:
        is_list = re.fullmatch(r"\d+,\d+( +\d+,\d+)*", value)
        pairs = re.findall(r"(\d+),(\d+)", value)
        if not is_list or any(not 1 <= int(most) <= int(first) for most, first in pairs):
            raise ValueError("expected rules b,k with 1 ≤ b ≤ k, as in '3,50 1,1000'")
        return value
