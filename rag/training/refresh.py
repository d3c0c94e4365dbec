"""Refresh what training draws from (mined negatives, an index) with the model as it has become.

OUT/refresh/step-00000500/
    snapshot/       the model before step 500
    result/         what the recipe's refresher made with it; done.json is written last

Every `refresh_every_steps` steps the trainer writes a snapshot; a resumed run, which would write
the same, keeps what is there. It makes the result itself before it goes on; or, with
`refresh_device`, starts a process that makes it there in the meantime, and takes the result up at
the next snapshot, where it waits for it if need be. So the number of a step decides which result it
is trained with, and a run that was killed at any moment takes the same steps again.

Source:
    Guu et al. 2020 (REALM): asynchronous refresh about every 500 steps. Xiong et al. 2021 (ANCE):
    training goes on with older negatives while the next are mined.
"""

import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, IncompleteArtifactError, ResourceError
from rag.core.files import (
    atomic_path,
    atomic_write_json,
    clean_directory,
    directory_lock,
    fsync_tree,
)
from rag.core.log import get_logger, setup_logging
from rag.runtime.hardware import use_threads
from rag.training.checkpoints import complete_checkpoints, read_checkpoint
from rag.training.config import RefreshedConfig
from rag.training.distributed import World
from rag.training.fit import FitHooks

_DONE = "done.json"
_STEP = "step-"

log = get_logger(__name__)


def make_result(
    refresher: Callable[..., None],
    config: RefreshedConfig,
    device: str,
    folder: Path,
    **options: Any,
) -> None:
    """Make the result of the snapshot in the folder of a step, unless it is there already."""
    result = folder / "result"
    with directory_lock(folder):
        if not (result / _DONE).exists():
            started = time.monotonic()
            clean_directory(result)
            refresher(config, device, folder / "snapshot", result, **options)
            fsync_tree(result)
            atomic_write_json(result / _DONE, {"seconds": time.monotonic() - started})
            log.info("refresh of %s after %.0f s", folder.name, time.monotonic() - started)


class Refresh(FitHooks):
    """Hooks of the fit loop: snapshots out, results in.

    Args:
        config: the run's configuration.
        refresher: module-level function (configuration, device, snapshot, folder) that makes the
            result of a snapshot in a folder, which is empty or was left by an interrupted call with
            the same snapshot.
        write_snapshot: writes the present model into a folder; called in the main process.
        take_up: opens the folder of a result in every process, so that the next batch is made with
            it; returns figures for the log.
        encode: an `EncodesCorpus`, which the refresher is then called with.
        begins_with_result: what training begins with was made by the model of step 0, which is not
            refreshed. Otherwise the first step waits for the first result.
    """

    def __init__(
        self,
        config: RefreshedConfig,
        refresher: Callable[..., None],
        write_snapshot: Callable[[Path], object],
        take_up: Callable[[Path], Mapping[str, float]],
        *,
        world: World,
        encode: Callable[..., Any] | None = None,
        begins_with_result: bool = False,
    ) -> None:
        if encode is not None and config.refresh_device is not None:
            raise ConfigError(
                "the corpus is encoded on a cluster, and refresh_device names a device of this machine",
                hint="give one of them",
            )
        self._config = config
        self._refresher = refresher
        self._options = {} if encode is None else {"encode": encode}
        self._write_snapshot = write_snapshot
        self._open = take_up
        self._world = world
        self._begins_with_result = begins_with_result
        self._root = config.out / "refresh"
        self._current: Path | None = None
        self._pending: Path | None = None
        # Steps that the model had taken with which the current result was made.
        self._made_at = 0
        self._child: Any = None
        self._figures: Mapping[str, float] = {}

    def before_step(self, step: int) -> None:
        """Take up the result of the last snapshot and write the next, where a refresh is due.

        Raises:
            ResourceError: the process that makes the result has died.
        """
        self._check_child()
        if not self.changes_batches(step):
            return
        if self._pending is not None:
            self._finish()
        self._begin(self._root / f"{_STEP}{step:08d}")
        if self._config.refresh_device is None or step == 0:
            self._finish()

    def changes_batches(self, step: int) -> bool:
        """Whether a refresh is due before `step`."""
        every = self._config.refresh_every_steps
        if step == 0 and self._begins_with_result:
            return False
        return bool(every) and step % every == 0

    def log_fields(self, step: int) -> Mapping[str, float]:
        """Age and figures of the result in use."""
        return {"index_age_steps": step - self._made_at, **self._figures}

    def extra_state(self) -> Mapping[str, Mapping[str, str | None]]:
        """The results in use and in the making, for an exact resume."""
        folders = {"current": self._current, "pending": self._pending}
        names = {name: folder.name if folder else None for name, folder in folders.items()}
        return {"refresh": names}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the results that the checkpoint names.

        Raises:
            IncompleteArtifactError: a result was deleted.
        """
        state = state["refresh"]
        if state["current"] is not None:
            self._take_up(self._root / state["current"])
        if state["pending"] is not None:
            self._begin(self._root / state["pending"])

    def on_checkpoint(self) -> None:
        """Delete results that no checkpoint needs any more, nor this run."""
        states = [self.extra_state()]
        for path in complete_checkpoints(self._config.out):
            states.append(read_checkpoint(path, "state")["hooks"])
        needed = {name for state in states for name in state["refresh"].values() if name}
        for folder in self._root.glob(f"{_STEP}*"):
            # What an interrupted run made for later steps is taken up there.
            if folder.name not in needed and folder.name < max(needed, default=""):
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End the process that makes a result nobody waits for any more."""
        if self._child is not None:
            self._child.kill()
            self._child.join()

    def _begin(self, folder: Path) -> None:
        """Write the snapshot, unless an earlier attempt of the same step did, and start a process
        for it.
        """
        self._pending = folder
        if not self._world.is_main:
            return
        snapshot = folder / "snapshot"
        if not snapshot.exists():
            with atomic_path(snapshot, folder=True) as temporary:
                self._write_snapshot(temporary)
            log.info("snapshot of %s", folder.name)
        device = self._config.refresh_device
        if device is not None:
            # A fork cannot use a GPU.
            self._child = multiprocessing.get_context("spawn").Process(
                target=_make_beside,
                args=(self._refresher, self._config, device, folder),
                daemon=True,
            )
            self._child.start()

    def _check_child(self) -> None:
        if self._child is not None and self._child.exitcode:
            raise ResourceError(
                f"the process that refreshes {self._pending} ended with exit code {self._child.exitcode}; "
                "see above",
                hint="the same command goes on from the last checkpoint and the last finished shard",
            )

    def _finish(self) -> None:
        """Wait for the pending result, or make it, and take it up in every process."""
        assert self._pending is not None
        if self._child is not None:
            self._child.join()
            self._check_child()
        elif self._world.is_main:
            make_result(
                self._refresher, self._config, self._world.device, self._pending, **self._options
            )
        self._world.barrier()
        self._take_up(self._pending)
        self._pending = None
        self._child = None

    def _take_up(self, folder: Path) -> None:
        if not (folder / "result" / _DONE).is_file():
            raise IncompleteArtifactError(
                f"{folder} has no finished result",
                hint="restore it, or train again in another folder",
            )
        self._current = folder
        self._made_at = int(folder.name.removeprefix(_STEP))
        figures = self._open(folder / "result")
        self._figures = {name: round(value, 4) for name, value in figures.items()}
        if self._world.is_main:
            log.info("training now uses the result of %s", folder.name)


def _make_beside(
    refresher: Callable[..., None], config: RefreshedConfig, device: str, folder: Path
) -> None:
    """Make a result in a process beside its trainer's, and end when that ends, however it does."""
    trainer = multiprocessing.parent_process()
    assert trainer is not None

    def end_with_trainer() -> None:
        trainer.join()
        os._exit(1)

    threading.Thread(target=end_with_trainer, daemon=True).start()
    setup_logging("INFO")
    use_threads(config.threads)
    # Ctrl-C reaches the trainer too, which ends this process.
    with suppress(KeyboardInterrupt):
        make_result(refresher, config, device, folder)
