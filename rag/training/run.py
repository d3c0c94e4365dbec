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
    batches: BatchSource[Any]
    loss: Callable[[Any], Loss]
    export: Callable[[Weights], Mapping[str, Any] | None]
    card: Card
    evaluate: Callable[[], Mapping[str, float]] | None = None
    hooks: Sequence[FitHooks] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """The arguments that a run passes to its recipe.

    Attributes:
        out: folder of the run.
        world: the processes.
        precision: number type of the computations.
    """

    out: Path
    world: World
    precision: str

    @property
    def device(self) -> str:
        """Where this process computes."""
        return self.world.device

    def master(self, model: nn.Module) -> MasterWeights:
        """The weights in fp32, which the optimiser works on; the model computes in the run's precision."""
        return MasterWeights.lowering(model, resolve_precision(self.precision, self.device))


def train(
    config: TrainConfig,
    recipe: Callable[[Run], Method],
    result_folder: str,
    *,
    one_process: str = "",
) -> Path:
    """Train as `config` says, or resume the run that `config.out` holds.

    Under torchrun every process calls this; a batch is shared among them.

    Writes into `config.out`: `config.json`, `inputs.json`, `metrics.jsonl`, `checkpoints/`,
    `figures.json`, what the recipe exports, and a model card for it.

    Args:
        config: everything that decides the run; it is stored as it is given.
        recipe: processes call it one after the other, first the main one, which writes what the others read.
        result_folder: the folder in `config.out` that is returned.
        one_process: why the recipe cannot use several processes; empty if it can.

    Returns:
        `config.out / result_folder`.

    Raises:
        DataError: an input file is wrong, or has nothing to train on or to validate with.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or of other data.
        ResourceError: another process trains there.
    """
    finished = config.out / result_folder
    with claimed(config) as world:
        if one_process:
            world.refuse_several(one_process)
        with world.main_first():
            method = recipe(Run(config.out, world, config.precision))
        stated = "".join(f"; {name}: {value}" for name, value in method.facts.items())
        log.info("%d batches%s", len(method.batches), stated)
        select_by = config.select_by
        if method.evaluate is None and select_by != "last":
            raise ConfigError(
                f"select_by={select_by} is measured on held-out data, and nothing is held out",
                hint="hold out a larger share, or set select_by=last",
            )
        result = fit(
            method.model, method.master, method.batches, method.loss, config, config.out,
            evaluate=method.evaluate, hooks=method.hooks, world=world,
        )  # fmt: skip
        if world.is_main:
            step = result.chosen_step
            measured = measured_at(config.out, step)
            figures = method.export({**method.master.frozen, **result.weights}) or measured
            atomic_write_json(config.out / "figures.json", {"step": step, "figures": figures})
            card = render_card(config, method.card, {**method.facts, "steps": step}, figures)
            atomic_write_text(finished / "README.md", card)
        world.barrier()
    return finished


def measured_at(out: Path, step: int) -> dict[str, float]:
    """Held-out figures at `step` of the run in `out`, from metrics.jsonl."""
    figures: dict[str, float] = {}
    for record in read_metrics(out / "metrics.jsonl"):
        if record.get("step") == step:
            figures |= {k.removeprefix("eval/"): v for k, v in record.items() if k.startswith("eval/")}
    return figures
