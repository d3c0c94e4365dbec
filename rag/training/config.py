"""What every training recipe's configuration has: `optim`, how it learns, and `run`, how it goes.

A recipe adds groups and defaults:

    class MyTrainConfig(TrainConfig):
        recipe: ClassVar[str] = "mine"
        name: str = "mine"
        optim: OptimConfig = OptimConfig(learning_rate=1e-4)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from rag.config import DEFAULT_SEED, Config
from rag.core.errors import ConfigError
from rag.training.refresh.schedule import RefreshSchedule

Rate = Annotated[float, Field(gt=0)]
ScheduleName = Literal["linear", "constant", "cosine", "wsd"]
_WSD_DECAY = 0.2


class OptimConfig(Config):
    """How a model is optimised.

    Attributes:
        learning_rate: its highest value, reached after the warm-up.
        learning_rates: another peak for parts of the model, by the beginning of their parameters' names
            (whole words between dots); the longest that fits counts.
        schedule: shape after the warm-up.
        warmup_fraction: share of the steps in which the rate rises.
        warmup_steps: the same in steps; wins where it is given.
        weight_decay: on matrices only.
        clip_norm: gradients are scaled down to this norm.
        accumulate: batches whose gradients are added before a step; in-batch negatives stay those of a batch.
        epochs: passes over the training questions; fractions are allowed.
        max_steps: ends the run (and its schedule) earlier; where `epochs` ends it before, a warning says so.
        precision: "bf16", "fp32", or "auto": bf16 where the hardware multiplies it faster.
        ema: decay of an average of the weights, which is then what is validated and exported; 0 is off.
    """

    learning_rate: Rate = 2e-5
    learning_rates: Mapping[str, Rate] = Field(default_factory=dict)
    schedule: ScheduleName = "linear"
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    warmup_steps: int | None = Field(default=None, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=2.0, gt=0)
    accumulate: int = Field(default=1, ge=1)
    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    ema: float = Field(default=0.0, ge=0, lt=1)

    @property
    def max_batches(self) -> int | None:
        """`max_steps`, in batches."""
        return None if self.max_steps is None else self.max_steps * self.accumulate


class RunConfig(Config):
    """How a run is watched, saved and repeated.

    Attributes:
        validate_every_steps: 0 validates at the end only.
        select_by: held-out figure that picks the exported weights; "last" takes the end of the run.
        early_stop: validations without a better `select_by` before the run ends; 0 never stops early.
        log_every_steps: distance of log lines and of records in metrics.jsonl.
        save_every_s: bounds what a killed run loses, in seconds; 0 saves after every step.
        tensorboard: write event files too (needs the extra `tensorboard`).
        threads: CPU threads; None: all cores.
        seed: of everything that is drawn at random.
    """

    free: ClassVar[frozenset[str]] = frozenset({"threads", "save_every_s", "log_every_steps", "tensorboard"})
    lowest: ClassVar[frozenset[str]] = frozenset({"nll", "average_rank"})  # figures that are best when small

    validate_every_steps: int = Field(default=0, ge=0)
    select_by: str = Field(default="last", min_length=1)
    early_stop: int = Field(default=0, ge=0)
    log_every_steps: int = Field(default=20, ge=1)
    save_every_s: float = Field(default=300.0, ge=0)
    tensorboard: bool = False
    threads: int | None = Field(default=None, ge=1)
    seed: int = Field(default=DEFAULT_SEED, ge=0)

    @model_validator(mode="after")
    def _check_early_stop(self) -> RunConfig:
        if self.early_stop and (self.select_by == "last" or not self.validate_every_steps):
            raise ValueError("early_stop needs select_by other than last, and validate_every_steps above 0")
        return self


class TrainConfig(Config):
    """Settings of every recipe.

    Attributes:
        recipe: its name.
        measured: figures of held-out data that `run.select_by` may name.
        out: folder of the run.
        name: of what is made.
        notes: a paragraph for the model card: what the configuration does not say.
        optim, run: see there.
    """

    recipe: ClassVar[str]
    measured: ClassVar[tuple[str, ...]] = ()
    free: ClassVar[frozenset[str]] = frozenset({"name", "notes"})

    out: Path
    name: str = Field(min_length=1)
    notes: str = ""
    optim: OptimConfig = OptimConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _cross_check_selection(self) -> Self:
        known, select_by = ("last", *self.measured), self.run.select_by
        if select_by not in known:
            raise ValueError(f"select_by={select_by} is not measured here: choose one of {', '.join(known)}")
        return self


class RefreshedConfig(Config):
    """Further settings of recipes whose negatives or index are refreshed during training.

    Attributes:
        refresh: when a snapshot of the model is handed over to be worked with: "never", "every 500",
            "0:500,2000:2000" (from step:every), "drift>0.05" (1 - mean cosine of probe passages).
        poll_every_steps: how often the trainer looks for newer results and measures drift.
        poll_s: how often the other process looks for a newer snapshot, in seconds.
        probe_questions: questions of the staleness figures.
        probe_passages: passages of the staleness figures and of drift.
        keep_generations: published snapshots and results that stay on disk.
    """

    refresh: str = "every 500"
    poll_every_steps: int = Field(default=100, ge=1)
    poll_s: float = Field(default=5.0, gt=0)
    probe_questions: int = Field(default=500, ge=1)
    probe_passages: int = Field(default=1000, ge=2)
    keep_generations: int = Field(default=2, ge=1)

    @property
    def schedule_of_refresh(self) -> RefreshSchedule:
        """`refresh`, parsed."""
        return RefreshSchedule.parse(self.refresh)

    @field_validator("refresh")
    @classmethod
    def _check_refresh(cls, value: str) -> str:
        try:
            return str(RefreshSchedule.parse(value))
        except ConfigError as error:
            raise ValueError(str(error)) from error


def schedule_factor(
    name: ScheduleName,
    step: int,
    total_steps: int,
    *,
    warmup_fraction: float = 0.05,
    warmup_steps: int | None = None,
) -> float:
    """Factor on the peak learning rate: a linear rise, then the schedule `name`.

    Args:
        name: "linear" falls to 0, "cosine" falls to 0 along half a cosine, "constant" stays, "wsd" (warm-up,
            stable, decay) stays for four fifths of the run and falls to 0 linearly.
        step: 0-based step about to be taken.
        warmup_steps: the same in steps; wins if given, 0 has no warm-up.

    Example:
        >>> [round(schedule_factor("wsd", s, 10, warmup_steps=2), 2) for s in (0, 1, 5, 8, 9)]
        [0.5, 1.0, 1.0, 1.0, 0.5]
        >>> [round(schedule_factor("cosine", s, 10, warmup_steps=0), 2) for s in (0, 5, 9)]
        [1.0, 0.5, 0.02]
    """
    warmup = max(1, round(total_steps * warmup_fraction)) if warmup_steps is None else warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    left = max(0.0, (total_steps - step) / max(1, total_steps - warmup))  # 1 … 0
    if name == "constant":
        return 1.0
    if name == "cosine":
        return 0.5 - 0.5 * math.cos(math.pi * min(1.0, left))
    if name == "wsd":
        return min(1.0, (total_steps - step) / max(1, round(total_steps * _WSD_DECAY)))
    return min(1.0, left)
