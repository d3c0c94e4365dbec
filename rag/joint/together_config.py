"""Configuration of training a retriever and a generator together."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from indexers.presets import IndexType
from rag.config import Config
from rag.data.examples import Needed
from retrievers.training.config import CorpusTrainConfig, ModelConfig, QuestionsConfig, ValidatedTrainConfig

DocumentSide = Literal["frozen", "reencode", "rerank"]


class JointReaderConfig(Config):
    """Settings of the generator; None means the value of its folder.

    Attributes:
        generator: folder of `rag train generator`, or any sequence-to-sequence checkpoint.
        dropout: dropout rate; None keeps the model's.
        template: format of an input, with {question}, {title} and {text} as placeholders.
        passage_tokens: maximum input length, special tokens included.
        question_tokens, answer_tokens: maximum lengths of question and answer.
        batch_tokens: number of tokens that are encoded at a time.
        beams: number of beams of the finished reader.
    """

    generator: str
    dropout: float | None = Field(default=None, ge=0, lt=1)
    template: str | None = None
    passage_tokens: int | None = Field(default=None, ge=8)
    question_tokens: int | None = Field(default=None, ge=1)
    answer_tokens: int | None = Field(default=None, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)
    beams: int | None = Field(default=None, ge=1)


class JointTrainConfig(CorpusTrainConfig, ValidatedTrainConfig):
    """Configuration of training a retriever and a generator together.

    Attributes:
        train_files: question sets with answers, of any format.
        validation_file: held-out question set with answers.
        document_side: "frozen" trains questions alone, over the index as it is; "reencode" also encodes the
            passages found with gradient, and makes the index anew as `refresh` says; "rerank" does so too,
            but keeps the index: it takes `over_retrieve` passages from it and the `top_k` best of these by
            the vectors of the model as it is.
        top_k: passages per question, K.
        over_retrieve: see "rerank".
        index_type: type of the finished index, if the passage encoder is trained.
        reader: settings of the generator.

    `run.select_by` may be "em", "f1", "nll" or a top-k, of held-out questions.
    """

    recipe: ClassVar[str]
    needs: ClassVar[Needed] = "questions"
    measured: ClassVar[tuple[str, ...]] = ("em", "f1", "nll", "mrr", "top1", "top5", "top20")

    document_side: DocumentSide = "frozen"
    top_k: int = Field(default=5, ge=1)
    over_retrieve: int = Field(default=0, ge=0)
    index_type: IndexType = "flat"
    data: QuestionsConfig = QuestionsConfig()
    model: ModelConfig = ModelConfig(shared=False)
    reader: JointReaderConfig

    @model_validator(mode="after")
    def _cross_check_joint(self) -> JointTrainConfig:
        if (self.document_side == "rerank") != bool(self.over_retrieve):
            raise ValueError("over_retrieve is for document_side rerank, and needed there")
        if self.over_retrieve and self.over_retrieve <= self.top_k:
            raise ValueError(f"over_retrieve ({self.over_retrieve}) must be more than top_k ({self.top_k})")
        if self.document_side == "frozen" and self.model.shared:
            raise ValueError("document_side frozen trains questions alone: set shared=false")
        return self
