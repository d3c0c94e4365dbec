"""Configuration of MDR: training over hops."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from retrievers.training.config import ContrastConfig, RetrieverTrainConfig

__all__ = ["HopConfig", "MdrTrainConfig"]


class HopConfig(ContrastConfig):
    """Which hops are trained on, and what each one's passage is told from.

    Attributes:
        batch_size: questions in a step; each brings all its hops.
        max_hops: questions that need more are left out.
        query_tokens: longest query with passages, special tokens included.
        negatives: "batch" tells each hop's passage from the other passages of the batch, and trains all
            towers; "index" tells it from what the question tower finds in `index` at that step, and trains
            the question tower alone: no passage is encoded, OUT/index is ready for the trained encoder.
        depth: passages found for each hop with negatives "index".
        queue_size: vectors of earlier batches' passages that every hop is told from too; 0 has none.
        momentum: of the copy of the passage tower that makes them; 1 never changes it.
    """

    max_hops: int = Field(default=4, ge=1, le=6)
    query_tokens: int = Field(default=256, ge=8, le=4096)
    negatives: Literal["batch", "index"] = "batch"
    depth: int = Field(default=200, ge=1)
    hard_negatives: int = Field(default=2, ge=0)
    queue_size: int = Field(default=0, ge=0)
    momentum: float = Field(default=0.999, ge=0, le=1)

    @model_validator(mode="after")
    def _cross_check_hops(self) -> HopConfig:
        if self.negatives == "index" and self.queue_size:
            raise ValueError("a queue of passage vectors has no use beside negatives=index")
        return self


class MdrTrainConfig(RetrieverTrainConfig):
    """Everything `train_mdr` reads.

    Attributes:
        train_files: question sets with gold passages (HotpotQA, 2WikiMultiHopQA, MuSiQue, MDR's files, JSON
            Lines with `gold_passage_ids`); questions with one gold passage are trained on as one hop.
        validation_file: a question set.
        index: its passages stand for the gold passages.

    `run.select_by` may be "path1" or "path10": the share of held-out questions whose passages are the best
    path, or one of the best ten, among the passages of the index with negatives "index", else of the held-out
    questions.

    Example:
        >>> MdrTrainConfig(out="run", train_files=("hotpot.json",)).data.max_hops
        4
    """

    recipe: ClassVar[str] = "mdr"
    measured: ClassVar[tuple[str, ...]] = ("path1", "path10")

    data: HopConfig = HopConfig()

    @property
    def query_tokens(self) -> int:
        """Longest query with passages."""
        return self.data.query_tokens

    @model_validator(mode="after")
    def _cross_check_mdr(self) -> MdrTrainConfig:
        if self.data.negatives == "index" and (self.index is None or self.model.shared):
            raise ValueError("negatives=index needs an index, and shared=false: its vectors stay as they are")
        return self
