"""ANCE's payload in the trainer: snapshots of the encoder go out, mined negatives come in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rag.training.distributed import World
from rag.training.exchange import Drift, Exchange, ExchangeSettings, Refresher
from rag.training.generations import Generation, Generations
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.mined import MinedNegatives
from retrievers.training.ance_config import AnceTrainConfig

__all__ = ["negatives_exchange"]

_SHOWN = (
    *("held_out/mrr", "held_out/top1", "held_out/top20"),
    *("refresh/overlap", "refresh/cosine", "refresh/entropy", "refresh/distinct"),
)


def negatives_exchange(
    config: AnceTrainConfig,
    batches: RetrieverBatches,
    write_encoder: Callable[[Path], object],
    *,
    key: str,
    world: World,
    in_line: bool,
    inline: Refresher | None = None,
    drift: Drift | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Exchange:
    """Hooks of the fit loop; the trainer never waits, except for the first negatives if its file has none.

    Args:
        config: of the run.
        batches: whose negatives are exchanged.
        write_encoder: puts the encoder as it is now into a folder; called in the main process.
        key: fingerprint of examples and corpus, the same in the inferencer.
        world: the processes.
        in_line: mine at once, in the main process, whenever a snapshot goes out; otherwise another process
            mines.
        inline: what mines, if `in_line` and this is the main process.
        drift: measures how far the model has moved; None if the schedule does not ask for it.
        sleep: waits for a number of seconds.
    """

    def take_up(generation: Generation) -> Mapping[str, float]:
        mined = MinedNegatives.read(generation, examples=len(batches.data), key=key)
        batches.use_negatives(mined.table, generation.version)
        return {name: mined.figures[name] for name in _SHOWN if name in mined.figures}

    return Exchange(
        ExchangeSettings(
            config.schedule_of_refresh, poll_every_steps=config.poll_every_steps, poll_s=config.poll_s,
            show_steps=config.run.log_every_steps, keep=config.keep_generations, in_line=in_line,
        ),
        Generations(config.out / "snapshots"),
        Generations(config.out / "negatives"),
        lambda folder: write_encoder(folder / "encoder"),
        take_up,
        world=world,
        key=key,
        refresher=inline,
        drift=drift,
        must_wait=lambda: not len(batches.data.negatives.values),
        sleep=sleep,
    )  # fmt: skip
