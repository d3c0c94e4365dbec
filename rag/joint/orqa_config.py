"""The configuration of `rag train orqa`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.data.examples import Needed
from readers.extractive.training.config import ReaderModelConfig
from retrievers.training.config import ModelConfig, RetrieverTrainConfig


class OrqaReaderConfig(ReaderModelConfig):
    """The span reader.

    Attributes:
        encoder: Hugging Face name or folder of an encoder, or of a reader to go on from; None is the embedded
            `all-MiniLM-L6-v2`.
        max_tokens: longest row of question, title and text; what is behind is not read.
        max_answer_tokens: longest span.
    """

    max_tokens: int = Field(default=320, ge=32, le=512)
    max_answer_tokens: int = Field(default=10, ge=1)


class OrqaTrainConfig(RetrieverTrainConfig):
    """Everything `train_orqa` reads.

    Attributes:
        train_files: question sets with answers, of any format.
        validation_file: the same, held out.
        index: built index with vectors; the encoder it was built with is what the question encoder starts
            from.
        early: C, passages among which the retriever alone is to find those that hold an answer.
        read: K, passages that the reader reads.
        answers: "strings", "regex" (regular expressions), or "auto": what the question set says.
        reader: see there.

    `run.select_by` may be "em" or a top-k, of held-out questions.
    """

    recipe: ClassVar[str] = "orqa"
    needs: ClassVar[Needed] = "questions"
    measured: ClassVar[tuple[str, ...]] = ("em", "mrr", "top1", "top5", "top20")

    index: Path
    early: int = Field(default=5000, ge=1)
    read: int = Field(default=5, ge=1)
    answers: Literal["auto", "strings", "regex"] = "auto"
    model: ModelConfig = ModelConfig(shared=False)
    reader: OrqaReaderConfig = OrqaReaderConfig()

    @model_validator(mode="after")
    def _cross_check_orqa(self) -> OrqaTrainConfig:
        if self.read > self.early:
            raise ValueError(f"read ({self.read}) passages are the first of early ({self.early})")
        if self.reader.answer_types or self.reader.skim_layer:
            raise ValueError("answer_types and skim_layer are not learned here: every answer is a span")
        return self
