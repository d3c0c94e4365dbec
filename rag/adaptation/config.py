"""Settings of adaptation; light, so that a command's help can show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from rag.adaptation.choices import KINDS, Kind
from rag.config import DEFAULT_SEED, Config


class AdaptConfig(Config):
    """Which questions are made of a corpus and kept, beside the configuration of the training.

    Attributes:
        out: folder of the run.
        index: index whose passages the questions are made from, and which is searched.
        model: "reader", or "retriever": the index's encoder. A retriever learns from all made questions, a
            reader from those on which search and reader agree.
        reader: folder of the reader that is adapted; None is the shipped one.
        replay: questions with passages, such as SQuAD's, that are trained on too, by a reader at most twice
            as many as are made; with them it keeps more of what it knows.
        kinds: kinds of made questions: "table", "sentence", "definition", "list", "heading".
        questions: number of questions that are made and judged.
        per_passage: highest number of questions from one passage.
        top_k: passages that are retrieved for each. A reader's questions have their own passage among them;
            those without the answer are hard negatives.
        agreement: F1 that the reader's answer must have with the made one.
        retriever: retriever for the index, see `retrievers.open`.
        index_encoder: folder of the index's encoder, if it was moved.
        seed: random seed of passages, questions and their wording.
    """

    recipe: ClassVar[str] = ""

    out: Path
    index: Path
    model: Literal["reader", "retriever"] = "reader"
    reader: str | None = None
    replay: tuple[Path, ...] = ()
    kinds: tuple[Kind, ...] = Field(default=KINDS, min_length=1)
    questions: int = Field(default=2000, ge=1)
    per_passage: int = Field(default=6, ge=1)
    top_k: int = Field(default=4, ge=1, le=100)
    agreement: float = Field(default=0.6, gt=0, le=1)
    retriever: str = "auto"
    index_encoder: str | None = None
    seed: int = Field(default=DEFAULT_SEED, ge=0)

    @field_validator("kinds", mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        given = (given,) if isinstance(given, str) else given
        kinds = tuple(kind.strip() for part in given for kind in str(part).split(","))
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise ValueError(f"{unknown[0]!r} is no kind of question, expected some of {','.join(KINDS)}")
        return kinds
