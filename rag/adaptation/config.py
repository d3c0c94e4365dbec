"""Settings of adaptation; light, so that a command's help can show them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from rag.config import DEFAULT_SEED, Config

LEAST_QUESTIONS = 50  # a training on fewer says nothing


class AdaptConfig(Config):
    """Which questions are made of a corpus, beside the configuration of the training.

    Attributes:
        out: folder of the run.
        index: index whose passages the questions are made from, and which is searched for negatives.
        replay: training examples that are learnt from too.
        questions: number of questions that are made.
        top_k: passages that are retrieved for each; those without the answer are hard negatives.
        retriever: retriever for the index, see `retrievers.open`.
        index_encoder: folder of the index's encoder, if it was moved.
        seed: random seed of passages, questions and their wording.
    """

    recipe: ClassVar[str] = ""

    out: Path
    index: Path
    replay: tuple[Path, ...] = ()
    questions: int = Field(default=2000, ge=LEAST_QUESTIONS)
    top_k: int = Field(default=4, ge=1, le=100)
    retriever: str = "auto"
    index_encoder: str | None = None
    seed: int = Field(default=DEFAULT_SEED, ge=0)
