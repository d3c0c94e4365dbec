"""One training run, the same for every recipe: a recipe provides a `Method`, this module does the rest.

claim → model, batches, loss (the recipe's) → fit → figures → export → model card
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rag.core.errors import ConfigError
from rag.core.files import atomic_write_json, atomic_write_text
from rag.core.log import get_logger
from rag.runtime.hardware import resolve_precision
from rag.training.card import Card, render_card
from rag.training.claim import claimed
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.fit import BatchSource, FitHooks, Loss, fit
from rag.training.precision import MasterWeights
from rag.training.run_log import read_metrics

log = get_logger(__name__)

Weights = dict[str, Tensor]
"""The result of a run: fp32, by the model's parameter names, those that were not trained too."""


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a recipe that a run calls.

    Attributes:
        model: in its compute dtype.
        master: its weights in fp32, see `Run.master`.
        batches: batches of the whole run.
        loss: loss of one batch; with several processes, of this process's share.
        export: writes the finished model, in the main process; returns its figures, or None if those of the
            training run are its figures.
        card: model card of the folder that the run returns.
        evaluate: scores the model on held-out data, in the main process; None in all processes if nothing is
            held out.
        hooks: hooks of the fit loop.
        facts: facts about the data for the log and the model card, as name → value.
    """

    model: nn.Module
    master: MasterWeights
    batches: BatchSource
    loss: Callable[[Any], Loss]
    export: Callable[[Weights], Mapping[str, Any] | None]
    card: Card
    evaluate: Callable[[], Mapping[str, float]] | None = None
    hooks: Sequence[FitHooks] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """The arguments that a run passes to its recipe: its folder, processes and number type."""

    out: Path
    world: World
    precision: str

    @property
    def device(self) -> str:
        """Where this process computes."""
        return self.world.device

    def master(self, model: nn.Module) -> MasterWeights:
        """The weights in fp32, which the optimiser works on; the model computes in the run's precision."""
        return MasterWeights(model, resolve_precision(self.precision, self.device))


def train(
    config: TrainConfig,
    recipe: Callable[[Run], Method],
    result_folder: str,
    *,
    one_process: str = "",
) -> Path:
    """Train as `config` says, or resume the run that `config.out` holds.

    Under torchrun every process calls this; a batch is shared among them. Writes into `config.out`:
    `config.json`, `inputs.json`, `metrics.jsonl`, `checkpoints/`, `figures.json`, and what the recipe
    exports, with a model card in `result_folder`, which is returned.

    Args:
        recipe: processes call it one after the other, first the main one, which writes what the others read.
        one_process: why the recipe cannot use several processes; empty if it can.

    Raises:
        DataError: an input file is wrong, or has nothing to train on or to validate with.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or of other data.
        ResourceError: another process trains there.
    """
    finished = config.out / result_folder
    with claimed(config) as world:
        if one_process and world.size > 1:
            raise ConfigError(
                f"{world.size} processes were started, one is enough: {one_process}",
                hint="start it without torchrun",
            )
        if not world.is_main:
            world.barrier()
        method = recipe(Run(config.out, world, config.precision))
        if world.is_main:
            world.barrier()
        stated = "".join(f"; {name}: {value}" for name, value in method.facts.items())
        log.info("%d batches%s", len(method.batches), stated)
        if method.evaluate is None and config.select_by != "last":
            raise ConfigError(
                f"select_by={config.select_by} is measured on held-out data, and nothing is held out",
                hint="hold out a larger share, or set select_by=last",
            )
        step, weights = fit(
            method.model, method.master, method.batches, method.loss, config, config.out,
            evaluate=method.evaluate, hooks=method.hooks, world=world,
        )  # fmt: skip
        if world.is_main:
            records = read_metrics(config.out / "metrics.jsonl")
            at_step = [record.items() for record in records if record["step"] == step]
            measured = {k[5:]: v for items in at_step for k, v in items if k.startswith("eval/")}
            figures = method.export({**method.master.frozen, **weights}) or measured
            atomic_write_json(config.out / "figures.json", {"step": step, "figures": figures})
            card = render_card(config, method.card, {**method.facts, "steps": step}, figures)
            atomic_write_text(finished / "README.md", card)
        world.barrier()
    return finished
