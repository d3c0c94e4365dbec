"""Settings that several recipes of retrievers share; each recipe's own stand in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rag.data.examples import Needed
from rag.training.config import TrainConfig


class BiEncoderConfig(TrainConfig):
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
        layout: "pair" or a template of title and text; None is the folder's setting.
        question_tokens, passage_tokens: maximum text lengths in training, special tokens included.
        dropout: dropout rate everywhere in the encoder; None is the folder's setting.
        lora: rank of low-rank adapters on all linear layers (`openqa-rag[lora]`), which are merged
            into the finished encoder; 0 trains all weights.
        reset_layers: number of the encoder's upper layers that start with random weights. Such an
            encoder knows the language but cannot retrieve, which serves to measure the effect of
            training alone.
    """

    free: ClassVar[frozenset[str]] = TrainConfig.free | {"index"}

    index: Path | None = None
    name: str = Field(default="bi-encoder", min_length=1)
    question_encoder: str | None = None
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
    layout: str | None = None
    question_tokens: int = Field(default=64, ge=4, le=4096)
    passage_tokens: int = Field(default=256, ge=8, le=4096)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    lora: int = Field(default=0, ge=0)
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


class HeldOutConfig(TrainConfig):
    """Settings of recipes that hold a part of their data out.

    Attributes:
        batch_size: number of questions in a step, over all processes together.
        validation_fraction: share of the training questions that is held out if there is no
            validation file.
        validation_questions: maximum number of held-out questions that are scored.
    """

    batch_size: int = Field(default=128, ge=1)
    validation_fraction: float = Field(default=0.02, ge=0, lt=1)
    validation_questions: int = Field(default=1000, ge=1)

    @property
    def validates(self) -> bool:
        """Whether there are held-out questions."""
        return getattr(self, "validation_file", None) is not None or self.validation_fraction > 0


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

    needs: ClassVar[Needed] = "positives"

    train_files: tuple[Path, ...] = Field(min_length=1)
    validation_file: Path | None = None
    train_questions: int = Field(default=0, ge=0)


class EncodedConfig(BiEncoderConfig):
    """Settings of recipes that compare the vectors of questions and passages of a batch.

    Attributes:
        chunk_size: texts that are encoded at once, with gradient caching; None means the whole
            batch.
    """

    measured: ClassVar[tuple[str, ...]] = ("nll", "average_rank")  # on held-out questions

    chunk_size: int | None = Field(default=None, ge=1)


class ContrastiveConfig(EncodedConfig, QuestionsConfig):
    """Settings of contrastive recipes: in-batch and mined negatives.

    Attributes:
        hard_negatives: mined passages beside each question's positive; fewer where a question has
            fewer.
        mask_false_negatives: leave a question's other positives out of its denominator, and encode
            a passage once that several questions bring.
    """

    hard_negatives: int = Field(default=1, ge=0)
    mask_false_negatives: bool = True


class CorpusConfig(TrainConfig):
    """Settings of recipes that learn from the sentences of a corpus.

    Attributes:
        batch_size: passages in a step.
        min_words: minimum number of words in a sentence; shorter ones are skipped.
        split: how files become passages: words100 or none.
    """

    batch_size: int = Field(default=128, ge=1)
    min_words: int = Field(default=4, ge=1)
    split: Literal["words100", "none"] = "words100"
