"""Configurations of training retriever and reader together; reading them imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rag.training.config import Count, RefreshedConfig, Share, TrainConfig
from readers.generative.settings import Marginal
from retrievers.training.config import BiEncoderConfig, CorpusConfig, HeldOutConfig, QuestionsConfig

if TYPE_CHECKING:
    from indexers.protocols import EncodesCorpus
    from rag.data.examples import Needed
    from rag.joint.losses import Objective

TRAINED = "trained"


class LiveIndexConfig(BiEncoderConfig, RefreshedConfig):
    """Settings of recipes that retrieve from an index while its encoder trains on.

    Attributes:
        frozen: "passage" trains the question side alone, over a fixed index; null trains both
            sides, and rebuilds the index every `refresh_every_steps` steps.
    """

    index: Path


class JointTrainConfig(LiveIndexConfig, QuestionsConfig):
    """Configuration of training a retriever and a generator together.

    Attributes:
        train_files: question sets with answers, of any format.
        validation_file: held-out question set with answers.
        frozen: "passage" trains the question side alone, over a fixed index; null also encodes the
            retrieved passages with gradient, and rebuilds the index every `refresh_every_steps`
            steps.
        top_k: passages per question, K.
        over_retrieve: number of passages taken from the index, of which the `top_k` best by the
            vectors of the model as it is are read; 0 takes `top_k`.
        retriever: "trained", or a fixed retriever of the index (`retrievers.open`) such as "bm25":
            then only the generator is trained, with that retriever's passages.
        prior_scale: factor on such a retriever's scores, whose softmax is p(z|x).
        generator: folder of `rag train generator`, or any sequence-to-sequence checkpoint.
        reader_dropout: dropout rate of the generator; None keeps the model's.
        template: format of its input, with {question}, {title} and {text} as placeholders; None
            keeps that of its folder, as for the next ones.
        reader_passage_tokens: maximum length of its input, special tokens included.
        reader_question_tokens, answer_tokens: maximum lengths of question and answer.
        batch_tokens: number of tokens that are encoded at a time.
        marginal: "sequence" marginalises over passages per whole answer, "token" per token of the
            answer.

    `select_by` may be "em", "f1", "nll" or a top-k, of held-out questions.
    """

    recipe: ClassVar[str]
    needs: ClassVar[Needed] = "questions"
    measured: ClassVar[tuple[str, ...]] = ("em", "f1", "nll", "mrr", "top1", "top5", "top20")

    frozen: Literal["passage"] | None = "passage"
    top_k: Count = 5
    over_retrieve: int = Field(default=0, ge=0)
    retriever: str = TRAINED
    prior_scale: float = Field(default=1.0, gt=0)
    shared: bool = False
    generator: str
    reader_dropout: float | None = Field(default=None, ge=0, lt=1)
    template: str | None = None
    reader_passage_tokens: int | None = Field(default=None, ge=8)
    reader_question_tokens: int | None = Field(default=None, ge=1)
    answer_tokens: int | None = Field(default=None, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)
    marginal: Marginal

    @property
    @abstractmethod
    def mode(self) -> str:
        """How the finished reader reads, see `GeneratorSettings`."""

    @abstractmethod
    def objective(self) -> Objective:
        """The loss."""

    def train_model(self, *, encode: EncodesCorpus | None = None) -> Path:
        """See `rag.joint.rag.train_joint`."""
        from rag.joint.rag import train_joint

        return train_joint(self, encode=encode)

    @model_validator(mode="after")
    def _cross_check_joint(self) -> JointTrainConfig:
        if self.over_retrieve and self.over_retrieve <= self.top_k:
            raise ValueError(
                f"over_retrieve ({self.over_retrieve}) must be more than top_k ({self.top_k})"
            )
        if self.retriever == TRAINED and self.prior_scale != 1:
            raise ValueError("prior_scale is for a fixed retriever: a trained one learns its scale")
        if self.retriever != TRAINED and self.frozen is None:
            raise ValueError(f"retriever {self.retriever} is fixed: set frozen to passage")
        return self


class RagTrainConfig(JointTrainConfig):
    """Settings of `rag train rag`.

    Attributes:
        smoothing: label smoothing of the marginal likelihood.
    """

    recipe: ClassVar[str] = "rag"

    name: str = Field(default="rag", min_length=1)
    marginal: Marginal = "sequence"
    smoothing: Share = 0.0

    @property
    def mode(self) -> str:
        """See `JointTrainConfig`."""
        return f"rag-{self.marginal}"

    def objective(self) -> Objective:
        """See `rag_loss`."""
        from rag.joint.losses import rag_loss

        return partial(rag_loss, marginal=self.marginal, smoothing=self.smoothing)


class EmdrTrainConfig(JointTrainConfig):
    """Settings of `rag train emdr2`.

    Attributes:
        marginal: marginalise per "token", as in the published code, or per whole answer
            ("sequence").
    """

    recipe: ClassVar[str] = "emdr2"

    name: str = Field(default="emdr2", min_length=1)
    frozen: Literal["passage"] | None = None
    marginal: Marginal = "token"
    mode: ClassVar[str] = "fid"

    def objective(self) -> Objective:
        """See `emdr2_loss`."""
        from rag.joint.losses import emdr2_loss

        return partial(emdr2_loss, marginal=self.marginal)


class OrqaTrainConfig(BiEncoderConfig, QuestionsConfig):
    """Settings of `rag train orqa`.

    Attributes:
        train_files: question sets with answers, of any format.
        validation_file: held-out question set with answers.
        index: built index with vectors; training starts from the encoder it was built with.
        early: C, number of passages in the early loss, which trains the retriever alone to rank
            those that contain an answer first.
        read: K, number of passages that the reader reads.
        reader: Hugging Face name or folder of an encoder, or of a reader to go on from; None is the
            embedded `all-MiniLM-L6-v2`.
        reader_dropout: dropout of its hidden states and attention weights.
        freeze_word_embeddings: leave its word embedding matrix as it is.
        reader_tokens: maximum length of question, title and text together; the rest is truncated.
        max_answer_tokens: maximum length of a span.

    `select_by` may be "em", "f1" or a top-k, of held-out questions.
    """

    recipe: ClassVar[str] = "orqa"
    needs: ClassVar[Needed] = "questions"
    measured: ClassVar[tuple[str, ...]] = ("em", "f1", "mrr", "top1", "top5", "top20")

    index: Path
    early: Count = 5000
    read: Count = 5
    shared: bool = False
    reader: str | None = None
    reader_dropout: Share = 0.0
    freeze_word_embeddings: bool = True
    reader_tokens: int = Field(default=320, ge=96, le=512)
    max_answer_tokens: Count = 10

    @model_validator(mode="after")
    def _cross_check_orqa(self) -> OrqaTrainConfig:
        if self.read > self.early:
            raise ValueError(f"read ({self.read}) must be at most early ({self.early})")
        return self

    def train_model(self) -> Path:
        """See `train_orqa`."""
        from rag.joint.orqa import train_orqa

        return train_orqa(self)


class MaskedTrainConfig(TrainConfig):
    """Settings of recipes that predict masked words: names, dates and titles of the corpus.

    Attributes:
        fills: "words" predicts each masked token from the whole vocabulary, as the paper does.
            "span" copies the masked words out of the passage with an extractive reader
            (`rag.joint.span_filler`): it reads after minutes of training, and passages without the
            words do no harm.
        guess: for "span": ε, the probability of the masked words given a passage without them.
        reader: Hugging Face name or folder; None is the embedded `all-MiniLM-L6-v2`, with a fresh
            head. For "span" it may be a reader.
        sentence_tokens: maximum length of a sentence; longer ones are truncated.
        joint_tokens: maximum length of a sentence and a passage together.
        mlm_dropout: dropout of hidden states and attention weights; None keeps that of the reader's
            folder, and is 0 for "span".
    """

    group = "Masked words"

    fills: Literal["words", "span"] = "words"
    guess: float = Field(default=0.001, gt=0, lt=1)
    reader: str | None = None
    sentence_tokens: int = Field(default=96, ge=8)
    joint_tokens: int = Field(default=288, ge=32, le=512)
    mlm_dropout: float | None = Field(default=None, ge=0, lt=1)

    @model_validator(mode="after")
    def _cross_check_masked(self) -> Self:
        if self.sentence_tokens >= self.joint_tokens:
            raise ValueError(
                f"joint_tokens ({self.joint_tokens}) has no room for a passage beside a sentence of up "
                f"to sentence_tokens ({self.sentence_tokens}): raise joint_tokens"
            )
        return self


class MlmTrainConfig(MaskedTrainConfig, CorpusConfig, HeldOutConfig):
    """Settings of `rag train mlm`."""

    recipe: ClassVar[str] = "mlm"
    measured: ClassVar[tuple[str, ...]] = ("nll", "utility", "utility_after")

    name: str = "masked-lm"
    batch_size: Count = 32
    validation_questions: Count = 400

    def train_model(self) -> Path:
        """See `train_mlm`."""
        from rag.joint.mlm import train_mlm

        return train_mlm(self)


class RealmTrainConfig(LiveIndexConfig, MaskedTrainConfig, CorpusConfig):
    """Settings of `rag train realm`.

    Attributes:
        train_files: sources of the sentences: a built index, or files of documents; empty means
            `index`.
        documents: K, number of passages per sentence, including the null document.
        null_document: whether the null document is one of the passages; if not, its effect is still
            measured.
        answered_within: train only on sentences whose masked words all stand in one of this many
            first passages for the masked sentence, other than its own; 0 trains on every sentence,
            as the paper does. Four sentences are then drawn for each place in a batch.
        frozen: null trains both towers and rebuilds the index, as the paper does; "passage" trains
            the question side alone, over a fixed index, in a fraction of the time per sentence.
        train_reader: train what fills in the masks too; if not, it is read without a gradient.
        validate_every_steps: 0, since nothing is held out.
    """

    recipe: ClassVar[str] = "realm"
    measured: ClassVar[tuple[str, ...]] = ()

    train_files: tuple[Path, ...] = ()
    documents: int = Field(default=8, ge=2)
    null_document: bool = True
    answered_within: int = Field(default=0, ge=0, le=100)
    train_reader: bool = True
    batch_size: Count = 16
    question_tokens: int = Field(default=96, ge=4, le=4096)
    validate_every_steps: Literal[0] = 0

    @model_validator(mode="after")
    def _cross_check_realm(self) -> RealmTrainConfig:
        if self.question_tokens < self.sentence_tokens:
            raise ValueError(
                f"the retriever reads question_tokens ({self.question_tokens}) of a sentence of up to "
                f"sentence_tokens ({self.sentence_tokens}): masks after them would not be in the query"
            )
        return self

    def train_model(self, *, encode: EncodesCorpus | None = None) -> Path:
        """See `train_realm`."""
        from rag.joint.realm import train_realm

        return train_realm(self, encode=encode)
