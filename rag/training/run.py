"""One training run, the same for every recipe: a recipe provides a `Method`, this module does the
rest.

claim → model, batches, loss (the recipe's) → fit → figures → export → model card
"""

from collections.abc import Callable
from pathlib import Path

from rag.core.errors import ConfigError
from rag.core.files import atomic_write_json, atomic_write_text
from rag.core.log import get_logger
from rag.metrics.significance import json_values
from rag.training.card import render_card
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.fit import Method, fit
from rag.training.run_folder import claimed

log = get_logger(__name__)


def train(
    config: TrainConfig,
    recipe: Callable[[World], Method],
    result_folder: str,
    *,
    one_process: str = "",
) -> Path:
    """Train as `config` says, or resume the run that `config.out` holds.

    Under torchrun every process calls this; a batch is shared among them. Writes into `config.out`:
    `config.json`, `inputs.json`, `metrics.jsonl`, `checkpoints/`, `figures.json`, and what the
    recipe exports, with a model card in `result_folder`, which is returned.

    Args:
        recipe: makes the method for this process; they call it one after the other, first the main
            one, which writes what the others read.
        one_process: why the recipe cannot use several processes; empty if it can.

    Raises:
        DataError: an input file is wrong, or has nothing to train on or to validate with.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or of other
            data.
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
        method = recipe(world)
        if world.is_main:
            world.barrier()
        facts = "".join(f"; {name}: {value}" for name, value in method.facts.items())
        log.info("%d batches%s", len(method.batches), facts)
        if config.max_batches is not None and len(method.batches) < config.max_batches:
            log.info("epochs=%g ends the run before max_steps=%d", config.epochs, config.max_steps)
        if method.evaluate is None and config.select_by != "last":
            raise ConfigError(
                f"select_by={config.select_by} is measured on held-out data, and nothing is held out",
                hint="hold out a larger share, or set select_by=last",
            )
        step, weights, scores = fit(method, config, world)
        if world.is_main:
            figures = method.export({**method.master.frozen, **weights}) or scores
            measured = json_values({"step": step, "figures": figures})
            atomic_write_json(config.out / "figures.json", measured)
            card = render_card(config, method.card, {**method.facts, "steps": step}, figures)
            atomic_write_text(finished / "README.md", card)
        world.barrier()
    return finished
