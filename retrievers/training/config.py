"""Settings of all recipes of retrievers; reading them imports no torch.

Each class says in `train_model` which function makes its method; that function's module is imported
when a run begins.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rag.core.errors import ConfigError
from rag.training.config import Count, LoraConfig, Rate, RefreshedConfig, Share, TrainConfig, Warmup

if TYPE_CHECKING:
    from indexers.protocols import EncodesCorpus
    from rag.data.examples import Needed


class EncoderConfig(TrainConfig):
    """The encoder that training starts from, and how it reads passages.

    Attributes:
        question_encoder: folder or Hugging Face name to start from; None is the embedded
            all-MiniLM-L6-v2.
        passage_tokens: maximum length of a passage in training, special tokens included.
        layout: "pair" or a template of a passage's title and text; None is the folder's setting.
        dropout: dropout rate everywhere in the encoder; None is the folder's setting.
    """

    group = "Model"

    question_encoder: str | None = None
    passage_tokens: int = Field(default=256, ge=8, le=4096)
    layout: str | None = None
    dropout: float | None = Field(default=None, ge=0, lt=1)


class BiEncoderConfig(EncoderConfig, LoraConfig):
    """Settings of every recipe that trains a bi-encoder: encoders, how they read texts, how they
    are scored.

    Attributes:
        index: built index; training starts from its encoder, and leaves its vectors as they are if
            `frozen`.
        question_encoder: folder or Hugging Face name to start from; None is the encoder of `index`,
            and without an index the embedded all-MiniLM-L6-v2.
        passage_encoder: another one for passages; None starts both sides from `question_encoder`.
        shared: use one tower for both questions and passages.
        frozen: "passage" leaves the passage tower as it is. With an index its vectors are then the
            passages', and `out / "index"` is the index for the trained encoder.
        pooling: how token vectors become one, or "tokens", which keeps them all; "auto" is the
            folder's setting ("cls" if it has none).
        normalize: unit vectors, compared by cosine; None is the folder's setting.
        temperature: divides the scores in the loss; "auto" is 0.05 for one unit vector per text,
            else 1.
        projection_dim: size of a new linear layer in the head; 0 keeps what the folder has.
        projection_norm: add a LayerNorm after the new layer.
        on_tokens: the head's layers act on every token, before pooling; None is the folder's
            setting.
        query_prefix, passage_prefix: put before every text; None is the folder's setting.
        question_tokens: maximum length of a question in training, special tokens included.
        reset_layers: number of the encoder's upper layers that start with random weights. Such an
            encoder knows the language but cannot retrieve, which serves to measure the effect of
            training alone.
    """

    free: ClassVar[frozenset[str]] = TrainConfig.free | {"index"}
    group = "Model"

    index: Path | None = None
    name: str = Field(default="bi-encoder", min_length=1)
    passage_encoder: str | None = None
    shared: bool = True
    frozen: Literal["passage"] | None = None
    pooling: Literal["auto", "cls", "mean", "lasttoken", "tokens"] = "auto"
    normalize: bool | None = None
    temperature: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    projection_dim: int = Field(default=0, ge=0)
    projection_norm: bool = False
    on_tokens: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    question_tokens: int = Field(default=64, ge=4, le=4096)
    reset_layers: int = Field(default=0, ge=0)

    @property
    def keeps_index(self) -> bool:
        """Whether the vectors of `index` are the passages', because the passage tower is not
        trained.
        """
        return self.frozen == "passage" and self.passage_encoder is None and self.index is not None

    @property
    def longest_query(self) -> int:
        """Maximum length in training of a query with context passages; the finished encoder allows
        it.
        """
        return max(self.question_tokens, self.passage_tokens)

    @model_validator(mode="after")
    def _cross_check_encoders(self) -> Self:
        if self.shared and self.passage_encoder not in (None, self.question_encoder):
            raise ValueError(
                f"shared is true, but passage_encoder ({self.passage_encoder}) is another model than "
                f"question_encoder ({self.question_encoder}); set shared=false for two towers"
            )
        if self.projection_norm and not self.projection_dim:
            raise ValueError(
                "projection_norm is a layer behind a new projection: set projection_dim"
            )
        if self.normalize is True and self.temperature == 1 and self.pooling != "tokens":
            raise ValueError(
                "normalize=true with temperature=1 hardly learns: cosines differ by less than 2; "
                "leave temperature at auto"
            )
        return self


class DataConfig(TrainConfig):
    """The data of a recipe, and how much of them a step learns from.

    Attributes:
        train_files: training data; several files are read one after another.
        batch_size: number of questions in a step, over all processes together.
    """

    group = "Data"

    train_files: tuple[Path, ...] = Field(min_length=1)
    batch_size: Count = 128


class HeldOutConfig(DataConfig):
    """Settings of recipes that hold a part of their data out.

    Attributes:
        validation_fraction: share of the training questions that is held out if there is no
            validation file.
        validation_questions: maximum number of held-out questions that are scored.
    """

    group = "Data"

    validation_fraction: Share = 0.02
    validation_questions: Count = 1000

    @property
    def validates(self) -> bool:
        """Whether there are held-out questions."""
        return self.validation_fraction > 0


class QuestionsConfig(HeldOutConfig):
    """Settings of recipes that learn from files of questions.

    Attributes:
        needs: what every training example must have.
        train_files: training examples (DPR's training JSON, FiD's, JSONL, .gz); several are read
            one after another.
        validation_file: examples that are never trained on; None cuts `validation_fraction` out of
            training.
        train_questions: train on a random sample of this many questions; 0 means all.
    """

    group = "Data"
    needs: ClassVar[Needed] = "positives"

    validation_file: Path | None = None
    train_questions: int = Field(default=0, ge=0)

    @property
    def validates(self) -> bool:
        """Whether there are held-out questions."""
        return self.validation_file is not None or super().validates


class EncodedConfig(BiEncoderConfig):
    """Settings of recipes that compare the vectors of questions and passages of a batch.

    Attributes:
        chunk_size: texts that are encoded at once, with gradient caching; None means the whole
            batch.
    """

    group = "Training"
    measured: ClassVar[tuple[str, ...]] = ("nll", "average_rank")  # on held-out questions

    chunk_size: int | None = Field(default=None, ge=1)


class ExamplesConfig(EncodedConfig, QuestionsConfig):
    """Settings of recipes of bi-encoders that learn from training examples."""


class ContrastiveConfig(ExamplesConfig):
    """Settings of contrastive recipes: in-batch and mined negatives.

    Attributes:
        hard_negatives: mined passages beside each question's positive; fewer where a question has
            fewer.
        mask_false_negatives: leave a question's other positives out of its denominator, and encode
            a passage once that several questions bring.
    """

    hard_negatives: int = Field(default=1, ge=0)
    mask_false_negatives: bool = True


class CorpusConfig(DataConfig):
    """Settings of recipes that learn from the sentences of a corpus.

    Attributes:
        train_files: the corpus: a built index, or files and folders of documents.
        batch_size: passages in a step.
        min_words: minimum number of words in a sentence; shorter ones are skipped.
        split: how files become passages: words100 or none.
    """

    group = "Data"

    min_words: Count = 4
    split: Literal["words100", "none"] = "words100"


class DprTrainConfig(ContrastiveConfig):
    """Settings of `rag train dpr`. The defaults fine-tune the embedded encoder on a CPU."""

    recipe: ClassVar[str] = "dpr"

    def train_model(self) -> Path:
        """See `retrievers.training.dpr.learn_from_examples`."""
        from rag.training.run import train
        from retrievers.training.dpr import learn_from_examples

        return train(self, partial(learn_from_examples, self), "encoder")


class AnceTrainConfig(ContrastiveConfig, RefreshedConfig):
    """Settings of `rag train ance`.

    Attributes:
        index: its passages are encoded again at every refresh.
        loss: "pairwise" scores each positive against its own mined passages only, as published;
            "in_batch" adds all other passages of the batch.
        depth: number of passages retrieved for each question.
        kept: maximum number of these that become negatives of the question, best first.
    """

    recipe: ClassVar[str] = "ance"
    # Not the loss: every refresh changes the negatives that it is measured with.
    measured: ClassVar[tuple[str, ...]] = ("average_rank",)

    index: Path
    loss: Literal["pairwise", "in_batch"] = "pairwise"
    depth: Count = 200
    kept: Count = 100

    @model_validator(mode="after")
    def _cross_check_ance(self) -> AnceTrainConfig:
        if self.depth < self.kept:
            raise ValueError(f"kept ({self.kept}) is more than depth ({self.depth}): raise depth")
        if not 1 <= self.hard_negatives <= self.kept:
            raise ValueError(
                f"hard_negatives ({self.hard_negatives}) are drawn from kept ({self.kept})"
            )
        if self.pooling == "tokens":
            raise ValueError("pooling=tokens: negatives are mined with one vector per passage")
        if self.keeps_index:
            raise ValueError(
                "frozen=passage: the index is encoded anew at every refresh, with both sides"
            )
        return self

    def train_model(self, *, encode: EncodesCorpus | None = None) -> Path:
        """See `retrievers.training.ance.build`."""
        from indexers.index import Index
        from rag.training.run import train
        from retrievers.training.ance import build

        with Index.open(self.index) as index:
            return train(self, partial(build, self, index, encode), "encoder")


class MdrTrainConfig(ContrastiveConfig):
    """Settings of `rag train mdr`.

    Attributes:
        train_files: question sets with gold passages (HotpotQA, 2WikiMultiHopQA, MuSiQue, MDR's
            files, JSON Lines with `gold_passage_ids`), of which those with one gold passage are
            trained on as one hop.
        validation_file: a question set.
        index: its passages stand for the gold passages.
        batch_size: number of questions in a step, each with all its hops.
        max_hops: questions that need more are left out.
        query_tokens: maximum query length with passages, special tokens included; for an index
            whose vectors are used, at most that of its passages.
        negatives: "batch" uses the other passages of the batch and trains all towers; with `frozen`
            "passage" it trains the question tower alone, on the vectors of `index` if that is
            given. "index" uses the passages that the question tower retrieves from `index` at that
            step, and trains only the question tower. If passage vectors do not change, OUT/index is
            the index for the trained encoder.
        depth: number of passages retrieved for each hop with negatives "index".
    """

    recipe: ClassVar[str] = "mdr"

    max_hops: int = Field(default=4, ge=1, le=6)
    query_tokens: int = Field(default=256, ge=8, le=4096)
    negatives: Literal["batch", "index"] = "batch"
    depth: Count = 200
    hard_negatives: int = Field(default=2, ge=0)

    @property
    def longest_query(self) -> int:
        """Maximum query length with passages."""
        return self.query_tokens

    @property
    def keeps_index(self) -> bool:
        """Whether training uses the vectors of `index` for the passages and leaves them
        unchanged.
        """
        return self.negatives == "index" or super().keeps_index

    @model_validator(mode="after")
    def _cross_check_mdr(self) -> MdrTrainConfig:
        if self.negatives == "index" and (self.index is None or self.shared):
            raise ValueError(
                "negatives=index needs an index, and shared=false: its vectors stay as they are"
            )
        return self

    def train_model(self) -> Path:
        """See `retrievers.training.mdr.build`."""
        from rag.training.run import train
        from retrievers.training.mdr import build

        reason = "only questions are encoded" if self.keeps_index else ""
        return train(self, partial(build, self), "encoder", one_process=reason)


class IctTrainConfig(EncodedConfig, CorpusConfig, HeldOutConfig):
    """Settings of `rag train ict`.

    Attributes:
        batch_size: passages in a step; each is the negative of all others. Passages from which no
            sentence can be taken are left out.
        validation_questions: maximum number of held-out passages that are scored.
        keep_sentence: probability that the sentence stays in its passage too.
    """

    recipe: ClassVar[str] = "ict"

    batch_size: int = Field(default=256, ge=2)
    chunk_size: int | None = Field(default=64, ge=1)
    keep_sentence: float = Field(default=0.1, ge=0, le=1)

    def train_model(self) -> Path:
        """See `retrievers.training.ict.build`."""
        from rag.training.run import train
        from retrievers.training.ict import build

        return train(self, partial(build, self), "encoder")


class DistillTrainConfig(ExamplesConfig):
    """Settings of `rag train distill`.

    Attributes:
        train_files: examples whose passages have targets (`rag score` writes them).
        batch_size: questions in a step; each brings its list.
        per_question: passages of a list, drawn anew at each visit; None takes all that have a
            target.
        loss: "kl" is the divergence from the targets' distribution, a mean over questions;
            "margin" is a hinge loss on pairs of passages, ordered by their targets.
        target_temperature: divides the targets, as `temperature` divides the scores.
    """

    recipe: ClassVar[str] = "distill"
    needs: ClassVar[Needed] = "targets"

    batch_size: Count = 32
    per_question: int | None = Field(default=None, ge=2)
    loss: Literal["kl", "margin"] = "kl"
    target_temperature: float = Field(default=1.0, gt=0)

    def train_model(self) -> Path:
        """See `retrievers.training.distill.build`."""
        from rag.training.run import train
        from retrievers.training.distill import build

        return train(self, partial(build, self), "encoder")


class StaticTrainConfig(QuestionsConfig):
    """Settings of `rag train static`.

    Attributes:
        index: a built index with one vector per passage: its encoder is the teacher.
        corpus: source of the sentences: an index, which needs no vectors, or files of documents;
            without one they come from `index`.
        batch_size: questions in a step, and sentences of the corpus.
        hard_negatives: mined passages beside each question's positive.
        dim: size of the vectors, at most the teacher's.
    """

    recipe: ClassVar[str] = "static"
    measured: ClassVar[tuple[str, ...]] = ("average_rank",)

    index: Path
    corpus: tuple[Path, ...] = ()
    name: str = Field(default="static-encoder", min_length=1)
    batch_size: int = Field(default=1024, ge=2)
    hard_negatives: int = Field(default=1, ge=0)
    dim: int = Field(default=256, ge=2)
    learning_rate: Rate = 1e-2
    epochs: float = Field(default=2, gt=0)
    warmup_steps: Warmup = 0.1
    precision: Literal["auto", "bf16", "fp32"] = "fp32"
    clip_norm: float = Field(default=100.0, gt=0)

    def train_model(self) -> Path:
        """See `retrievers.training.static.build`."""
        from indexers.index import Index
        from rag.training.run import train
        from retrievers.training.static import build

        with Index.open(self.index) as index:
            size = 0 if index.embeddings is None else index.embeddings.dim
            if self.dim > size:
                raise ConfigError(
                    f"dim is {self.dim}, and {self.index} has {size or 'no'} dimensions per passage",
                    hint="lower dim, or build the index with `rag index … --retriever dense`",
                )
            reason = "one table of vectors is trained"
            return train(self, partial(build, self, index), "encoder", one_process=reason)


class ColbertTrainConfig(ContrastiveConfig):
    """Settings of `rag train colbert`.

    Attributes:
        question_tokens: length of a question in tokens: longer ones are truncated, shorter ones
            padded with [MASK].
    """

    recipe: ClassVar[str] = "colbert"
    measured: ClassVar[tuple[str, ...]] = ("nll",)

    batch_size: Count = 32
    pooling: Literal["tokens"] = "tokens"
    normalize: Literal[True] = True  # search by MaxSim needs unit vectors
    projection_dim: int = Field(default=128, ge=0, le=128)
    question_tokens: int = Field(default=32, ge=4, le=4096)
    passage_tokens: int = Field(default=180, ge=8, le=4096)

    def train_model(self) -> Path:
        """Train a retriever, or resume the run in `out`; see `rag.training.run.train`. The finished encoder
        is a folder of sentence-transformers' `MultiVectorEncoder`.

        Score of question and passage is MaxSim of their token vectors; questions are filled up with
        masks. Each positive is contrasted with its hard negatives and all passages of the batch.

        Source:
            Khattab and Zaharia 2020, "ColBERT", section 3.3; for the softmax over many passages
            Santhanam et al. 2022, "ColBERTv2: Effective and Efficient Retrieval via Lightweight
            Late Interaction", section 3.2.
        """
        from rag.training.run import train
        from retrievers.training.dpr import learn_from_examples

        return train(self, partial(learn_from_examples, self), "encoder")


class RerankerTrainConfig(EncoderConfig, QuestionsConfig):
    """Settings of `rag train reranker`.

    In `learning_rates`, the two parts of any base are called `encoder` and `head`.

    Attributes:
        question_encoder: an encoder, or a cross-encoder to go on from; None is the embedded
            all-MiniLM-L6-v2.
        passage_tokens: maximum length of a pair in training.
        hard_negatives: number of hard negatives beside each positive, drawn anew at each visit.
        depth: length of a question's list of hard negatives to draw from; also of held-out lists.
    """

    recipe: ClassVar[str] = "reranker"
    measured: ClassVar[tuple[str, ...]] = ("nll", "list_mrr", "list_top1")

    name: str = Field(default="cross-encoder", min_length=1)
    batch_size: Count = 16
    validation_questions: Count = 200
    hard_negatives: Count = 7
    depth: Count = 30

    def train_model(self) -> Path:
        """See `retrievers.training.reranker.build`."""
        from rag.training.run import train
        from retrievers.training.reranker import build

        return train(self, partial(build, self), "cross-encoder")
