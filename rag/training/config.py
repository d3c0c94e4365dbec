"""The settings of all training recipes: optimisation, validation, saving, seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rag.config import DEFAULT_SEED, Config
from rag.core.errors import ConfigError

ENTRY_POINTS = "openqa_rag.recipes"
"""Group of entry points by which installed packages name their recipes."""

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Warmup = Annotated[int, Field(ge=0)] | Share


class TrainConfig(Config):
    """Settings of every training recipe: the loop, validation, saving.

    Attributes:
        recipe: name of the recipe.
        measured: figures on held-out data that `select_by` may name.
        lowest: those of all recipes' figures that are best when small.
        replaced_by: settings of earlier versions, and what is to be set instead.
        out: output folder of the run.
        name: name of the finished model.
        learning_rate: peak learning rate, reached after the warm-up.
        learning_rates: peak learning rates for parts of the model, by prefixes of parameter names
            (whole words between dots); the longest matching prefix counts.
        schedule: shape of the learning rate after the warm-up.
        warmup_steps: number of steps in which the learning rate rises; below 1 their share of all
            steps.
        weight_decay: weight decay, applied to weight matrices only.
        clip_norm: maximum norm of the gradient; a longer one is scaled down.
        accumulate: number of batches per step, whose gradients are added; in-batch negatives come
            from one batch only.
        epochs: passes over the training questions; fractions are allowed.
        max_steps: maximum number of steps of the run and its schedule; `epochs` may end it earlier.
        precision: "bf16", "fp32", or "auto": bf16 where the hardware computes it faster.
        start_share: share of the weights that training starts from in those that are validated and
            exported, the trained ones have the rest: less is forgotten, and what is learnt is often
            of more use elsewhere (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").
            New layers, which start with random weights, are averaged with these too.
        validate_every_steps: number of steps between validations; 0 validates at the end only.
        select_by: held-out figure by which the exported weights are chosen; "last" exports the
            final weights.
        log_every_steps: number of steps between log lines, and between records in metrics.jsonl;
            None means 20, and a tenth of the steps of a shorter run.
        save_every_s: seconds between checkpoints; 0 saves after every step.
        threads: number of CPU threads; None uses all cores.
        seed: random seed.
    """

    group = "Training"
    recipe: ClassVar[str]
    measured: ClassVar[tuple[str, ...]] = ()
    lowest: ClassVar[frozenset[str]] = frozenset({"nll", "average_rank"})
    free: ClassVar[frozenset[str]] = frozenset(
        {"name", "threads", "save_every_s", "log_every_steps"}
    )
    replaced_by: ClassVar[Mapping[str, str]] = {
        "warmup_fraction": "warmup_steps, which below 1 is a share of all steps",
        "document_side": "frozen: passage, or null to train both sides",
    }

    out: Path
    name: str = Field(min_length=1)
    learning_rate: Rate = 2e-5
    learning_rates: Mapping[str, Rate] = Field(default_factory=dict)
    schedule: Literal["linear", "constant"] = "linear"
    warmup_steps: Warmup = 0.05
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=2.0, gt=0)
    accumulate: Count = 1
    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    start_share: Share = 0.0
    validate_every_steps: int = Field(default=0, ge=0)
    select_by: str = Field(default="last", min_length=1)
    log_every_steps: int | None = Field(default=None, ge=1)
    save_every_s: float = Field(default=300.0, ge=0)
    threads: int | None = Field(default=None, ge=1)
    seed: int = Field(default=DEFAULT_SEED, ge=0, lt=1 << 32)

    @property
    def max_batches(self) -> int | None:
        """`max_steps` as a number of batches."""
        return None if self.max_steps is None else self.max_steps * self.accumulate

    def train_model(self) -> Path:
        """Train as these settings say, or resume the run in `out`; returns the folder of the result.

        Every recipe has a method of its own.
        """
        raise ConfigError(
            f"{type(self).__name__} has no method `train_model`",
            hint="define one that trains, and returns the folder of the result",
        )

    @model_validator(mode="after")
    def _cross_check_selection(self) -> Self:
        measured = ("last", *self.measured)
        if self.select_by not in measured:
            raise ValueError(
                f"select_by={self.select_by} is not measured here: choose one of {', '.join(measured)}"
            )
        return self


class LoraConfig(TrainConfig):
    """How much of a model is trained.

    Attributes:
        lora: rank of low-rank adapters on all linear layers (`openqa-rag[lora]`), which alone are
            trained and then merged into the weights: it saves the optimiser's memory of a large
            model. 0 trains the weights themselves.
    """

    group = "Model"

    lora: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _cross_check_lora(self) -> Self:
        if self.lora and self.start_share:
            raise ValueError(
                "start_share mixes weights, and lora trains factors of their changes: set one of them"
            )
        return self


class RefreshedConfig(TrainConfig):
    """Settings of recipes whose negatives or index are refreshed during training.

    Attributes:
        refresh_every_steps: number of steps after which negatives or index are made anew with the
            model as it is; 0 never does.
        refresh_device: the device, such as "cpu" or "cuda:7", on which a process of its own refreshes
            while training goes on; the result of a snapshot is then used from the next snapshot on,
            that of step 0 at once. None refreshes in the trainer's process, which waits for it.
    """

    group = "Refresh"

    refresh_every_steps: int = Field(default=500, ge=0)
    refresh_device: str | None = None


def schedule_factor(config: TrainConfig, step: int, total_steps: int) -> float:
    """Factor on the peak learning rate before step `step` (from 0) of a run: a linear warm-up, then
    a linear fall to 0, or a constant.

    Example:
        >>> config = TrainConfig(out=Path("run"), name="toy", warmup_steps=2)
        >>> [schedule_factor(config, step, 10) for step in (0, 1, 2, 6)]
        [0.5, 1.0, 1.0, 0.5]
    """
    warmup = config.warmup_steps
    if isinstance(warmup, float):
        warmup = max(1, round(total_steps * warmup))
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    return (total_steps - step) / (total_steps - warmup)
