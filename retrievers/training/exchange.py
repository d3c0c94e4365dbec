"""The trainer's side of ANCE: snapshots go out when the schedule says so, negatives come in when they exist.

The trainer never waits for an inferencer, except for the first negatives if the training file has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch

from indexers.generations import Generation, Generations
from indexers.npy import load_npy, save_npy
from rag.core.errors import IncompleteArtifactError
from rag.core.log import get_logger
from rag.training.distributed import World
from rag.training.fit import FitHooks
from rag.training.refresh import IndexAge, RefreshSchedule
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.mined import MinedNegatives
from retrievers.training.ance_config import AnceTrainConfig
from retrievers.training.staleness import DriftMeter

__all__ = ["NegativesExchange", "Refresher"]

_DRIFT_NAME = "probe_vectors.npy"
_SHOWN = (
    *("held_out/mrr", "held_out/top1", "held_out/top20"),
    *("refresh/overlap", "refresh/cosine", "refresh/entropy", "refresh/distinct"),
)
_FROM_FILE = IndexAge("file", 0)

log = get_logger(__name__)


class Refresher(Protocol):
    """What mines in the trainer's own process; `Inferencer` does."""

    def refresh(self, snapshot: Generation, *, before: Generation | None) -> Generation:
        """Publish the negatives of a snapshot."""
        ...


class NegativesExchange(FitHooks):
    """Hooks of the fit loop.

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

    def __init__(
        self,
        config: AnceTrainConfig,
        batches: RetrieverBatches,
        write_encoder: Callable[[Path], object],
        *,
        key: str,
        world: World,
        in_line: bool,
        inline: Refresher | None = None,
        drift: DriftMeter | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config, self._batches, self._write_encoder = config, batches, write_encoder
        self._key, self._world, self._inline, self._sleep = key, world, inline, sleep
        self._in_line = in_line
        self._schedule: RefreshSchedule = config.schedule_of_refresh
        self._drift = drift
        self._snapshots = Generations(config.out / "snapshots")
        self._negatives = Generations(config.out / "negatives")
        self._current: Generation | None = None
        self._age = _FROM_FILE
        self._figures: dict[str, float] = {}
        self._taken_up_at = 0
        self._snapshot_step: int | None = None
        self._snapshot_version = ""

    def before_step(self, step: int) -> None:
        """Hand over a snapshot if it is time to, take up newer negatives if there are any."""
        polls = step % self._config.poll_every_steps == 0
        if self._is_due(step, polls):
            snapshot = self._publish(step)
            if self._in_line:
                self._take_up(self._mine(snapshot), step)
        if polls and not self._in_line and not self._schedule.is_never:
            self._look_for_newer(step)

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """Version and age of the negatives; once after they changed, what their inferencer measured."""
        fields = self._age.record(step)
        fresh = self._figures if step - self._taken_up_at <= self._config.log_every_steps else {}
        return {**fields, **fresh}

    def extra_state(self) -> Mapping[str, Any]:
        """What is in use, for an exact resume."""
        return {
            "negatives": self._current.version if self._current is not None else None,
            "taken_up_at": self._taken_up_at,
            "snapshot": self._snapshot_version,
            "snapshot_step": self._snapshot_step,
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the negatives of the checkpoint, or with the newest if they are gone."""
        self._snapshot_step = state.get("snapshot_step")
        self._snapshot_version = str(state.get("snapshot", ""))
        if self._drift is not None:
            self._drift.reference = self._reference()
        wanted = state.get("negatives")
        if wanted is None:
            return
        generation = self._negatives.find(wanted)
        if generation is None:
            generation = self._negatives.newest()
            log.warning(
                "negatives %s of the checkpoint are gone, going on with %s: losses will differ from an "
                "undisturbed run",
                *(wanted, generation.version if generation is not None else "those of the training file"),
            )
        if generation is not None:
            self._take_up(generation, int(state.get("taken_up_at", 0)))

    def _is_due(self, step: int, polls: bool) -> bool:
        drift = None
        if self._drift is not None and polls:
            drift = self._world.broadcast_object(self._drift() if self._world.is_main else None)
        return self._schedule.is_due(step, self._snapshot_step, drift)

    def _publish(self, step: int) -> Generation | None:
        """Write the snapshot; it is returned in the main process."""
        snapshot = None
        if self._world.is_main:
            # Writing and encoding draw random numbers in places; training must not notice.
            with torch.random.fork_rng():
                snapshot = self._snapshots.publish(self._write_snapshot, step=step, meta={"key": self._key})
            self._snapshots.prune(self._config.keep_generations)
            self._snapshot_version = snapshot.version
            log.info("snapshot %s of step %d", snapshot.version, step)
        self._snapshot_step = step
        return snapshot

    def _write_snapshot(self, folder: Path) -> None:
        self._write_encoder(folder / "encoder")
        if self._drift is not None:
            save_npy(folder / _DRIFT_NAME, self._drift.reset())

    def _reference(self) -> Any:
        """Probe vectors of the last snapshot, if it is still there."""
        assert self._drift is not None
        snapshot = self._snapshots.find(self._snapshot_version)
        if snapshot is None or not self._world.is_main:
            return None
        now = self._drift.reset()
        return load_npy(snapshot.path / _DRIFT_NAME, dtype=now.dtype, shape=now.shape).copy()

    def _mine(self, snapshot: Generation | None) -> Generation:
        version = None
        if snapshot is not None and self._inline is not None:
            with torch.random.fork_rng():
                version = self._inline.refresh(snapshot, before=self._current).version
        return self._find(self._world.broadcast_object(version))

    def _look_for_newer(self, step: int) -> None:
        """Take up the newest negatives in every process; waits for the first if there are no others."""
        with ExitStack() as stack:
            newest = self._negatives.newest() if self._world.is_main else None
            if self._world.is_main and newest is None and not len(self._batches.data.negatives.values):
                log.info(
                    "no negatives yet: waiting for `rag train ance --role inferencer` on the same folder"
                )
                while newest is None:
                    self._sleep(self._config.poll_s)
                    newest = self._negatives.newest()
            if newest is not None:
                newest = stack.enter_context(self._negatives.hold())
            version = self._world.broadcast_object(newest.version if newest is not None else None)
            if version is not None:
                self._take_up(newest if newest is not None else self._find(version), step)
            self._world.barrier()

    def _find(self, version: str) -> Generation:
        found = self._negatives.find(version)
        if found is None:
            raise IncompleteArtifactError(
                f"negatives {version} have vanished from {self._negatives.directory}",
                hint="do not delete them during a run",
            )
        return found

    def _take_up(self, generation: Generation, step: int) -> None:
        if self._current is not None and generation.version == self._current.version:
            return
        with self._negatives.hold(generation) as held:
            mined = MinedNegatives.read(held, examples=len(self._batches.data), key=self._key)
            self._batches.use_negatives(mined, generation.version)
        self._current, self._taken_up_at = generation, step
        self._age = IndexAge(generation.version, generation.step)
        self._figures = {name: round(mined.figures[name], 4) for name in _SHOWN if name in mined.figures}
        if self._world.is_main:
            log.info("step %d: negatives now from %s", step, self._age.describe(step))
