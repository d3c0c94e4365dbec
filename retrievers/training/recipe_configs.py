"""Configurations of distillation, ICT, ColBERT, MDR and cross-encoders; reading them imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rag.config import Config
from rag.data.examples import Needed
from retrievers.training.config import (
    BatchConfig,
    ContrastConfig,
    DataConfig,
    EncodedConfig,
    EncodedTrainConfig,
    ExamplesConfig,
    ModelConfig,
    ValidatedTrainConfig,
)


class DistillDataConfig(DataConfig):
    """Data settings of distillation: each question has a list of passages with target scores.

    Attributes:
        batch_size: questions in a step; each brings its list.
        per_question: passages of a list, drawn anew at each visit; None takes all that have a target.
    """

    batch_size: int = Field(default=32, ge=1)
    per_question: int | None = Field(default=None, ge=2)


class DistillTrainConfig(EncodedTrainConfig):
    """Settings of `rag train distill`.

    Attributes:
        train_files: examples whose passages have targets (`rag score` writes them).
        loss: "kl" is the divergence from the targets' distribution, a mean over questions; "kl-per-passage"
            is the published reduction, which divides by the number of passages too; "margin" is a hinge loss
            on pairs of passages, ordered by their targets.
        target_temperature: temperature by which targets are divided; scores are divided by
            `model.temperature`.
        margin: factor of the required score difference for loss "margin": times the difference of targets.
        nll_weight: weight of an additional in-batch loss of the labelled positives; 0 leaves it out.
    """

    recipe: ClassVar[str] = "distill"
    loss: Literal["kl", "kl-per-passage", "margin"] = "kl"
    target_temperature: float = Field(default=1.0, gt=0)
    margin: float = Field(default=1.0, gt=0)
    nll_weight: float = Field(default=0.0, ge=0)
    data: DistillDataConfig = DistillDataConfig()

    @property
    def needs(self) -> Needed:
        """Targets."""
        return "targets"


class CorpusDataConfig(BatchConfig):
    """Which sentences of a corpus are trained on.

    Attributes:
        batch_size: passages in a step.
        min_words: minimum number of words in a sentence; shorter ones are skipped.
        split: how files become passages: words100, sentences or none.
    """

    min_words: int = Field(default=4, ge=1)
    split: Literal["words100", "sentences", "none"] = "words100"


class HeldOutCorpusConfig(CorpusDataConfig):
    """Data settings where some passages are held out.

    Attributes:
        validation_fraction: share of the passages that is held out.
        validation_questions: maximum number of held-out passages that are scored.
    """

    validation_fraction: float = Field(default=0.02, ge=0, lt=1)
    validation_questions: int = Field(default=1000, ge=1)


class IctDataConfig(HeldOutCorpusConfig, EncodedConfig):
    """Which passages are trained on, and how often the sentence taken from a passage also stays in it.

    Attributes:
        batch_size: passages in a step; each is the negative of all others. Passages from which no sentence
            can be taken are left out.
        validation_questions: maximum number of held-out passages, or of questions of `validation_file`, that
            are scored.
        keep_sentence: probability that the sentence stays in its passage too.
        masked_queries: probability that a name or date of the sentence is masked, as `rag train realm` will
            mask it.
        empty_passage: add the empty passage to the negatives: REALM's null document, which an encoder
            otherwise places anywhere.
    """

    batch_size: int = Field(default=256, ge=2)
    chunk_size: int | None = Field(default=64, ge=1)
    keep_sentence: float = Field(default=0.1, ge=0, le=1)
    masked_queries: float = Field(default=0.0, ge=0, le=1)
    empty_passage: bool = False


class IctTrainConfig(EncodedTrainConfig):
    """Settings of `rag train ict`.

    Attributes:
        train_files: the corpus: a built index, or files and folders of documents.
        validation_file: questions with positives, to measure retrieval for real questions; None scores
            held-out passages.
        index: index that is searched for these questions at each validation.
    """

    recipe: ClassVar[str] = "ict"

    data: IctDataConfig = IctDataConfig()

    @model_validator(mode="after")
    def _cross_check_ict(self) -> IctTrainConfig:
        if self.index is not None and self.validation_file is None:
            raise ValueError("index is searched for the questions of a validation_file: set it too")
        return self


class ColbertDataConfig(ContrastConfig):
    """Data settings of ColBERT training: contrastive, or lists of scored passages for the loss "kl".

    Attributes:
        per_question: number of a question's passages with targets in a step, drawn anew in each epoch; None
            means all.
    """

    batch_size: int = Field(default=32, ge=1)
    per_question: int | None = Field(default=None, ge=2)


class ColbertModelConfig(ModelConfig):
    """Model settings of late interaction, with one vector per token.

    Attributes:
        projection_dim: size of the token vectors; 0 keeps the projection of the folder.
        question_tokens: length of a question in tokens: longer ones are truncated, shorter ones padded with
            [MASK].
    """

    pooling: Literal["tokens"] = "tokens"
    projection_dim: int = Field(default=128, ge=0, le=128)
    question_tokens: int = Field(default=32, ge=4, le=4096)
    passage_tokens: int = Field(default=180, ge=8, le=4096)


class ColbertTrainConfig(EncodedTrainConfig):
    """Settings of `rag train colbert`.

    Attributes:
        train_files: examples with positives and hard negatives (`rag mine`), or with targets for "kl"
            (`rag score`, from a cross-encoder or a reader).
        loss: "softmax" contrasts each positive with its hard negatives and all passages of the batch;
            "pairwise" with each of its hard negatives alone; "kl" is the KL divergence from the targets.
        target_temperature: temperature by which the targets are divided, for "kl".
        nll_weight: weight of the loss "softmax" added to "kl", for questions with a positive in their list.
    """

    recipe: ClassVar[str] = "colbert"
    measured: ClassVar[tuple[str, ...]] = ("nll", "mrr", "top1", "top5", "top20", "top100")

    loss: Literal["softmax", "pairwise", "kl"] = "softmax"
    target_temperature: float = Field(default=1.0, gt=0)
    nll_weight: float = Field(default=0.0, ge=0)
    data: ColbertDataConfig = ColbertDataConfig()
    model: ColbertModelConfig = ColbertModelConfig()

    @property
    def needs(self) -> Needed:
        """Positives, or targets for the loss that follows them."""
        return "targets" if self.loss == "kl" else "positives"

    @model_validator(mode="after")
    def _cross_check_colbert(self) -> ColbertTrainConfig:
        if self.loss == "pairwise" and not self.data.hard_negatives:
            raise ValueError("loss=pairwise is made of hard negatives: set hard_negatives")
        if self.nll_weight and self.loss != "kl":
            raise ValueError(f"nll_weight is only for loss=kl, and loss is {self.loss}: set nll_weight=0")
        if self.model.normalize is False:
            raise ValueError("normalize is false, and search by MaxSim needs unit vectors: leave it at auto")
        return self


class HopConfig(ContrastConfig):
    """Which hops are trained on, and with which negatives.

    Attributes:
        batch_size: number of questions in a step, each with all its hops.
        max_hops: questions that need more are left out.
        any_order: train on all orders of a question's passages, even if `hop_orders` finds the right one.
        query_tokens: maximum query length with passages, special tokens included.
        negatives: "batch" uses the other passages of the batch and trains all towers; with `frozen`
            "passage" it trains the question tower alone, on the vectors of `index` if that is given. "index"
            uses the passages that the question tower retrieves from `index` at that step, and trains only the
            question tower. If passage vectors do not change, OUT/index is the index for the trained encoder.
        depth: number of passages retrieved for each hop with negatives "index".
        queue_size: number of passage vectors of earlier batches that serve as further negatives; 0 for none.
        momentum: momentum of the copy of the passage tower that computes these; with 1 it never changes.
    """

    max_hops: int = Field(default=4, ge=1, le=6)
    any_order: bool = False
    query_tokens: int = Field(default=256, ge=8, le=4096)
    negatives: Literal["batch", "index"] = "batch"
    depth: int = Field(default=200, ge=1)
    hard_negatives: int = Field(default=2, ge=0)
    queue_size: int = Field(default=0, ge=0)
    momentum: float = Field(default=0.999, ge=0, le=1)

    @model_validator(mode="after")
    def _cross_check_hops(self) -> HopConfig:
        if self.negatives == "index" and self.queue_size:
            raise ValueError("negatives=index needs no queue of passage vectors: set queue_size=0")
        if self.hold_out == "title":
            raise ValueError("hold_out=title: the hops of a question have different titles; use question")
        return self


class MdrTrainConfig(EncodedTrainConfig):
    """The whole configuration of `train_mdr`.

    Attributes:
        train_files: question sets with gold passages (HotpotQA, 2WikiMultiHopQA, MuSiQue, MDR's files, JSON
            Lines with `gold_passage_ids`), of which those with one gold passage are trained on as one hop; or
            what `rag mine` with `--hops` makes of them, with its negatives for every hop.
        validation_file: a question set.
        index: its passages stand for the gold passages.

    `run.select_by` may be "path1" or "path10": the share of held-out questions whose passages are the best
    path, or one of the best ten, among the passages of the index with negatives "index", else of the held-out
    questions.
    """

    recipe: ClassVar[str] = "mdr"
    measured: ClassVar[tuple[str, ...]] = ("path1", "path10")

    data: HopConfig = HopConfig()

    @property
    def query_tokens(self) -> int:
        """Maximum query length with passages."""
        return self.data.query_tokens

    @property
    def keeps_index(self) -> bool:
        """Whether training uses the vectors of `index` for the passages and leaves them unchanged."""
        return self.data.negatives == "index" or (self.model.as_indexed and self.index is not None)

    @model_validator(mode="after")
    def _cross_check_mdr(self) -> MdrTrainConfig:
        if self.data.negatives == "index" and (self.index is None or self.model.shared):
            raise ValueError("negatives=index needs an index, and shared=false: its vectors stay as they are")
        return self


class RerankerDataConfig(ExamplesConfig):
    """Data settings for lists of passages with one positive each.

    Attributes:
        hard_negatives: number of hard negatives beside each positive, drawn anew from the question's list at
            each visit.
        depth: number of passages, from the first of the list, to draw from; also the length of held-out
            lists.
    """

    batch_size: int = Field(default=16, ge=1)
    validation_questions: int = Field(default=200, ge=1)
    hard_negatives: int = Field(default=7, ge=1)
    depth: int = Field(default=30, ge=1)


class RerankerModelConfig(Config):
    """The network, and how it reads pairs.

    Attributes:
        question_encoder: an encoder, or a cross-encoder to go on from; None is the embedded all-MiniLM-L6-v2.
        passage_tokens: maximum length of a pair in training.
        layout: "pair" or a template of a passage's title and text; None is the folder's setting.
        dropout: dropout rate; None is the folder's setting.
    """

    question_encoder: str | None = None
    passage_tokens: int = Field(default=256, ge=8, le=4096)
    layout: str | None = None
    dropout: float | None = Field(default=None, ge=0, lt=1)


class RerankerTrainConfig(ValidatedTrainConfig):
    """Settings of `rag train reranker`."""

    recipe: ClassVar[str] = "reranker"
    measured: ClassVar[tuple[str, ...]] = ("nll", "list_mrr", "list_top1")

    name: str = Field(default="cross-encoder", min_length=1)
    data: RerankerDataConfig = RerankerDataConfig()
    model: RerankerModelConfig = RerankerModelConfig()
