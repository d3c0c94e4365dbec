"""Exchange with a refresher: snapshots of the model go out, refreshed artefacts come in.

    snapshots/      the model at some steps, published by the trainer
    (a payload)/    results that a refresher made from them: negatives, targets, or an index

Trainer and refresher are two processes that share these folders and never wait for each other, or one
process that does both in turn. Either may be killed at any moment and started again: the trainer saves a
checkpoint whenever it has loaded a result, and a result is kept as long as a checkpoint needs it.

The content of a result is known to two places only: a `Refresher` builds its files from a snapshot, and the
trainer's `take_up` opens them.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError
from rag.core.log import get_logger
from rag.training.checkpoints import Checkpoint, complete_checkpoints
from rag.training.config import RefreshedConfig
from rag.training.distributed import World
from rag.training.fit import FitHooks
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.processes import BEAT_S, Watch
from rag.training.refresh.refresher import Refresher
from rag.training.refresh.staleness import DriftMeter

_FROM_START = "file"  # the version of what the trainer had before the first refresh
_UNANSWERED = 3  # snapshots in a row that nothing was made of, until somebody is told

log = get_logger(__name__)


class Exchange(FitHooks):
    """The trainer's side: hooks of the fit loop.

    Args:
        config: when the trainer exchanges, and how many snapshots stay beside those that checkpoints need.
        write_snapshot: writes the present model into a folder; called in the main process.
        take_up: opens a result in every process, so that the next batch is made with it, and closes the
            previous one; returns figures for the log. The generation is safe from deletion during the call
            only: files that are used longer must be mapped or read by then.
        key: identifies the run's examples and corpus; results of a refresher with another key are ignored.
        drift: measures how far the model has moved; needed if the schedule depends on it.
        must_wait: whether training cannot begin without a result.
        begins_with_result: what training begins with was made by the model of step 0: the schedule counts
            from there, and nothing is made before the first step.
        in_line: refresh at once, in the main process, whenever a snapshot is published; otherwise another
            process refreshes.
        show_steps: number of steps during which the figures of a new result are logged.
    """

    def __init__(
        self,
        config: RefreshedConfig,
        snapshots: Generations,
        payloads: Generations,
        write_snapshot: Callable[[Path], object],
        take_up: Callable[[Any], Mapping[str, float]],
        *,
        world: World,
        key: str = "",
        refresher: Refresher | None = None,
        drift: DriftMeter | None = None,
        must_wait: Callable[[], bool] = lambda: False,
        begins_with_result: bool = False,
        in_line: bool = True,
        show_steps: int = 20,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config, self._snapshots, self._payloads = config, snapshots, payloads
        self._schedule, self._in_line, self._show_steps = config.schedule_of_refresh, in_line, show_steps
        self._write_snapshot, self._open, self._world, self._key = write_snapshot, take_up, world, key
        self._refresher, self._drift, self._must_wait, self._sleep = refresher, drift, must_wait, sleep
        self._current: Generation | None = None
        self._version, self._made_at = _FROM_START, 0
        self._figures: Mapping[str, float] = {}
        self._taken_up_at = 0
        self._unsaved = False
        is_current = begins_with_result and not self._schedule.watches_drift  # drift is from a snapshot
        self._snapshot_step: int | None = 0 if is_current else None
        self._snapshot_version = ""
        self._unanswered = 0

    def before_step(self, step: int) -> None:
        """Publish a snapshot if one is due, and load a newer result if there is one."""
        polls = step % self._config.poll_every_steps == 0
        if self._is_due(step, polls):
            snapshot = self._publish(step)
            if self._in_line:
                self._take_up(self._refresh(snapshot), step)
            else:
                self._say_if_alone()
        if polls and not self._in_line and not self._schedule.is_never:
            self._look_for_newer(step)

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """Version and age of the result in use; for a while after a change, its figures."""
        is_new = step - self._taken_up_at <= self._show_steps
        age = {"index_version": self._version, "index_age_steps": step - self._made_at}
        return {**age, **(self._figures if is_new else {})}

    def asks_for_checkpoint(self) -> bool:
        """Whether a result was just loaded: so a resumed run repeats no step with another result."""
        return self._unsaved

    def extra_state(self) -> Mapping[str, Any]:
        """The result in use, for an exact resume."""
        return {
            "key": self._key,
            "taken_up": self._current.version if self._current is not None else None,
            "taken_up_at": self._taken_up_at,
            "snapshot": self._snapshot_version,
            "snapshot_step": self._snapshot_step,
        }

    def on_checkpoint(self, path: Path, step: int) -> None:
        """Allow results to be deleted that only deleted checkpoints needed."""
        self._unsaved = False
        saved = map(Checkpoint.open, complete_checkpoints(path.parent))
        kept = [checkpoint.state.get("hooks", {}) for checkpoint in saved]
        self._payloads.pin({str(state["taken_up"]) for state in kept if state.get("taken_up")})
        if self._drift is not None:
            self._snapshots.pin({str(state["snapshot"]) for state in kept if state.get("snapshot")})

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the result that the checkpoint used; if it was deleted, have it made again.

        Raises:
            MismatchedArtifactError: the run was started with other examples, or another corpus.
        """
        if state.get("key", self._key) != self._key:
            raise MismatchedArtifactError(
                f"the run in {self._snapshots.directory.parent} began with other questions, or another index "
                "under the same name",
                hint="restore those to continue, or choose another --out",
            )
        self._snapshot_step = state.get("snapshot_step")
        self._snapshot_version = str(state.get("snapshot", ""))
        snapshot = self._snapshots.find(self._snapshot_version)
        if self._drift is not None and snapshot is not None and self._world.is_main:
            self._drift.load(snapshot.path)
        wanted = state.get("taken_up")
        if wanted is None:
            return
        generation = self._payloads.find(wanted)
        if generation is None:
            self._snapshot_step = None
            log.warning(
                "%s, which the checkpoint was trained with, was deleted: it is made again from the model as "
                "it is now, so losses will differ from an undisturbed run",
                wanted,
            )
        else:
            self._take_up(generation, int(state.get("taken_up_at", 0)))
            self._unsaved = False

    def _is_due(self, step: int, polls: bool) -> bool:
        is_first = self._snapshot_step is None and not self._schedule.is_never and self._must_wait()
        if is_first:  # whatever the schedule: nobody makes the first result without a snapshot
            return True
        drift = None
        if self._drift is not None and polls:
            drift = self._world.broadcast_object(self._drift() if self._world.is_main else None)
        return self._schedule.is_due(step, self._snapshot_step, drift)

    def _say_if_alone(self) -> None:
        """A trainer whose snapshots nobody takes trains on, with what it began with."""
        self._unanswered += 1
        if self._world.is_main and self._unanswered % _UNANSWERED == 0:
            log.warning(
                "the last %d snapshots gave no result: is the other process running, which is the same "
                "command with --role refresher? If so, snapshots come faster than it works; see "
                "--refresh. Training continues with the present version",
                self._unanswered,
            )

    def _publish(self, step: int) -> Generation | None:
        """Write the snapshot; it is returned in the main process."""
        snapshot = None
        if self._world.is_main:
            # Writing and encoding draw random numbers in places; training must not notice.
            with torch.random.fork_rng():
                snapshot = self._snapshots.publish(self._write, step=step, meta={"key": self._key})
            self._snapshots.prune(self._config.keep_generations)
            self._snapshot_version = snapshot.version
            log.info("snapshot %s of step %d", snapshot.version, step)
        self._snapshot_step = step
        return snapshot

    def _write(self, folder: Path) -> None:
        self._write_snapshot(folder)
        if self._drift is not None:
            self._drift.save(folder)

    def _refresh(self, snapshot: Generation | None) -> Generation:
        version = None
        if snapshot is not None and self._refresher is not None:
            with torch.random.fork_rng():
                version = self._refresher.refresh(snapshot, before=self._current).version
        return self._find(self._world.broadcast_object(version))

    def _look_for_newer(self, step: int) -> None:
        """Load the newest result in every process; wait for the first if training cannot begin without it."""
        with ExitStack() as stack:
            newest = self._newest(step) if self._world.is_main else None
            if self._world.is_main and newest is None and self._must_wait():
                log.info("nothing to train with yet: waiting for the refresher on the same folder")
                refresher = Watch(self._payloads.directory.parent, "refresher")
                while newest is None:
                    refresher.check()
                    self._sleep(min(self._config.poll_s, BEAT_S))
                    newest = self._newest(step)
            if newest is not None:
                newest = stack.enter_context(self._payloads.hold(newest))
            version = self._world.broadcast_object(newest.version if newest is not None else None)
            if version is not None:
                self._take_up(newest if newest is not None else self._find(version), step)
            self._world.barrier()

    def _newest(self, step: int) -> Generation | None:
        """The newest of no newer a model: a resumed run may find some of steps that are still to come."""
        found = [own for own in self._payloads.all(key=self._key) if own.step <= step]
        return found[-1] if found else self._current

    def _find(self, version: str) -> Generation:
        found = self._payloads.find(version)
        if found is None:
            raise IncompleteArtifactError(
                f"{version}, a finished refresh, has vanished",
                hint="do not delete files of a run while it runs",
            )
        return found

    def _take_up(self, generation: Generation, step: int) -> None:
        if self._current is not None and generation.version == self._current.version:
            return
        with self._payloads.hold(generation) as held:
            if self._world.is_main:
                self._payloads.pin({*self._payloads.pinned, held.version})
            figures = self._open(held)
        self._current, self._taken_up_at, self._unsaved = generation, step, True
        self._version, self._made_at, self._unanswered = generation.version, generation.step, 0
        self._figures = {name: round(value, 4) for name, value in figures.items()}
        if self._world.is_main:
            age = f"{step - self._made_at:,} steps old"
            log.info("step %d: training now uses index %s, which is %s", step, self._version, age)
