"""Configurations of retriever training: what all recipes share, and DPR's own part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rag.config import Config
from retrievers.examples.records import Needed

__all__ = ["ContrastiveTrainConfig", "DprTrainConfig", "RetrieverTrainConfig"]


class RetrieverTrainConfig(Config):
    """What every recipe that trains a bi-encoder reads.

    Attributes:
        out: folder of the run: configuration, metrics, curves, checkpoints and the finished encoder.
        train_files: training examples (DPR's training JSON, JSONL, .gz); several are read one after another.
        train_questions: train on a random sample of so many; 0 is all.
        validation_file: examples that are never trained on; None cuts `validation_fraction` out of training.
        validation_fraction: share of the training questions that is held out if there is no file.
        hold_out: "question" holds out single questions; "title" all questions whose first positive has the
            same title, where one article has many questions and held-out ones shall be about unseen articles.
        validation_questions: at most so many held-out questions are scored.
        index: built index whose passages are searched at each validation; None leaves retrieval unmeasured.
        validation_passages: size of the pool that is searched: all positives and a sample of the rest; 0 is
            the whole index.
        name: of the finished encoder.
        notes: a paragraph for the model card: what the configuration does not say.
        question_encoder: folder or Hugging Face name to start from; None is the embedded all-MiniLM-L6-v2.
        passage_encoder: another one for passages; None starts both sides from `question_encoder`.
        shared: one tower for questions and passages.
        pooling: how token vectors become one; "auto" is what the folder says ("cls" where it says nothing).
        normalize: unit vectors; "auto" is what the folder says.
        temperature: scores are divided by it in the loss; "auto" is 0.05 for unit vectors, else 1.
        learn_temperature: train it too, starting from `temperature`.
        projection_dim: size of a linear layer after pooling; 0 has none.
        query_prefix, passage_prefix: put before every text; None is what the folder says.
        layout: "pair" or a template of title and text; None is what the folder says.
        question_tokens, passage_tokens: longest texts in training, special tokens included.
        export_tokens: longest text of the finished encoder; None is `passage_tokens`, or what the
            sentence-transformers folder it started from says, if that is more.
        batch_size: questions in a step, over all processes together.
        chunk_size: texts that go through the encoder at once, by the gradient cache; None: the whole batch.
        accumulate: batches whose gradients are added before a step; in-batch negatives stay those of a batch.
        epochs: passes over the training questions; fractions are allowed.
        max_steps: ends the run (and its schedule) earlier.
        learning_rate: the peak.
        schedule: shape after the warm-up.
        warmup_fraction: share of the steps in which the rate rises.
        warmup_steps: the same in steps; wins where it is given.
        weight_decay: on matrices only.
        clip_norm: gradients are scaled down to this norm.
        dropout: everywhere in the encoder; None is what the folder says.
        precision: "bf16", "fp32", or "auto": bf16 where the hardware multiplies it faster.
        ema: decay of an average of the weights, which is then what is validated and exported; 0 is off.
        validate_every_steps: 0 validates at the end only.
        select_by: held-out figure that picks the exported checkpoint; "last" takes the end of the run.
        early_stop: validations without a better `select_by` before the run ends; 0 never stops early.
        log_every_steps: distance of log lines and of records in metrics.jsonl.
        save_every_s: bounds what a killed run loses, in seconds.
        tensorboard: write event files too (needs the extra `tensorboard`).
        threads: CPU threads; None: all cores.
        seed: of every random choice.
    """

    recipe: ClassVar[str] = "retriever"
    needs: ClassVar[Needed] = "positives"  # what every training example must have
    free: ClassVar[frozenset[str]] = frozenset(
        {
            *("threads", "save_every_s", "log_every_steps", "tensorboard", "name", "notes", "index"),
            *("validation_passages", "export_tokens"),
        }
    )

    # data
    out: Path
    train_files: tuple[Path, ...] = Field(min_length=1)
    train_questions: int = Field(default=0, ge=0)
    validation_file: Path | None = None
    validation_fraction: float = Field(default=0.02, ge=0, lt=1)
    hold_out: Literal["question", "title"] = "question"
    validation_questions: int = Field(default=1000, ge=1)
    index: Path | None = None
    validation_passages: int = Field(default=0, ge=0)
    name: str = Field(default="bi-encoder", min_length=1)
    notes: str = ""

    # model
    question_encoder: str | None = None
    passage_encoder: str | None = None
    shared: bool = True
    pooling: Literal["auto", "cls", "mean", "max", "lasttoken"] = "auto"
    normalize: bool | Literal["auto"] = "auto"
    temperature: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    learn_temperature: bool = False
    projection_dim: int = Field(default=0, ge=0)
    query_prefix: str | None = None
    passage_prefix: str | None = None
    layout: str | None = None
    question_tokens: int = Field(default=64, ge=4, le=4096)
    passage_tokens: int = Field(default=256, ge=8, le=4096)
    export_tokens: int | None = Field(default=None, ge=8, le=4096)

    # batches
    batch_size: int = Field(default=128, ge=1)
    chunk_size: int | None = Field(default=None, ge=1)
    accumulate: int = Field(default=1, ge=1)

    # optimisation
    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    learning_rate: float = Field(default=2e-5, gt=0)
    schedule: Literal["linear", "constant", "cosine", "wsd"] = "linear"
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    warmup_steps: int | None = Field(default=None, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=2.0, gt=0)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    ema: float = Field(default=0.0, ge=0, lt=1)

    # validation, logs, checkpoints
    validate_every_steps: int = Field(default=0, ge=0)
    select_by: Literal["last", "nll", "average_rank", "mrr", "top1", "top5", "top20", "top100"] = "last"
    early_stop: int = Field(default=0, ge=0)
    log_every_steps: int = Field(default=20, ge=1)
    save_every_s: float = Field(default=300.0, gt=0)
    tensorboard: bool = False
    threads: int | None = Field(default=None, ge=1)
    seed: int = 13

    @property
    def validates(self) -> bool:
        """Whether there are held-out questions."""
        return self.validation_file is not None or self.validation_fraction > 0

    @model_validator(mode="after")
    def _cross_check(self) -> RetrieverTrainConfig:
        if self.shared and self.passage_encoder not in (None, self.question_encoder):
            raise ValueError(
                f"shared is true, but passage_encoder ({self.passage_encoder}) is another model than "
                f"question_encoder ({self.question_encoder}); set shared=false for two towers"
            )
        if self.normalize is True and self.temperature == 1 and not self.learn_temperature:
            raise ValueError(
                "normalize=true with temperature=1 hardly learns: cosines differ by less than 2; "
                "leave temperature at auto, or set learn_temperature=true"
            )
        if self.select_by != "last" and not self.validates:
            raise ValueError(f"select_by={self.select_by} needs held-out questions: set validation_fraction")
        if self.select_by not in ("last", "nll", "average_rank") and self.index is None:
            raise ValueError(f"select_by={self.select_by} is measured by searching: set index")
        if self.early_stop and (self.select_by == "last" or not self.validate_every_steps):
            raise ValueError("early_stop needs select_by other than last, and validate_every_steps above 0")
        if self.validation_passages and self.index is None:
            raise ValueError("validation_passages samples the passages of an index: set index")
        if self.chunk_size is not None and self.accumulate > 1:
            raise ValueError(
                "chunk_size and accumulate are two ways to large batches, and only chunk_size gives every "
                "question all negatives: raise batch_size and leave accumulate at 1"
            )
        return self


class ContrastiveTrainConfig(RetrieverTrainConfig):
    """What the recipes share that tell positives from negatives, in the batch and mined.

    Attributes:
        hard_negatives: mined passages beside each question's positive; fewer where a question has fewer.
        negatives_depth: they are drawn from so many of a question's mined passages, the hardest; 0 is all.
        group_by: "title" fills batches with the questions of one article after the other: its passages are
            hard to tell apart, and each is encoded once for all its questions; "none" mixes articles.
        pool_batches: batches whose questions are sorted by length among themselves; 1 sorts nothing.
        positives: "first" is the gold passage; "random" draws one of several at each visit.
        mask_false_negatives: leave passages out of a question's denominator that are one of its positives or
            hold one of its answers.
    """

    hard_negatives: int = Field(default=1, ge=0)
    negatives_depth: int = Field(default=0, ge=0)
    group_by: Literal["none", "title"] = "none"
    pool_batches: int = Field(default=1, ge=1)
    positives: Literal["first", "random"] = "first"
    mask_false_negatives: bool = True

    @model_validator(mode="after")
    def _cross_check_contrast(self) -> ContrastiveTrainConfig:
        if self.batch_size == 1 and self.hard_negatives == 0:
            raise ValueError(
                "one question a batch without hard_negatives has nothing to tell its positive from; "
                "raise batch_size or hard_negatives"
            )
        if self.group_by != "none" and self.pool_batches > 1:
            raise ValueError(
                "group_by and pool_batches order the questions in different ways: set one of them"
            )
        return self


class DprTrainConfig(ContrastiveTrainConfig):
    """Everything `train_dpr` reads. The defaults fine-tune the embedded encoder on a CPU.

    Example:
        >>> config = DprTrainConfig(out="run", train_files=("train.json",))
        >>> config.batch_size, config.shared, config.recipe
        (128, True, 'dpr')
    """

    recipe: ClassVar[str] = "dpr"
