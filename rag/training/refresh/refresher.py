"""Making what the trainer takes up out of its snapshots: once, or until the trainer has finished."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError
from rag.core.log import get_logger
from rag.training.refresh.generations import Generation, Generations

log = get_logger(__name__)


class RefreshStopped(Exception):
    """The trainer has finished: nobody waits for this refresh."""


class Refresher(ABC):
    """Makes a payload out of snapshots. Derive from it and write `build`.

    Args:
        key: says what the run is about (examples, corpus), the same in the trainer.
        keep: results that stay on disk, beside those that the trainer's checkpoints need.
    """

    def __init__(
        self, snapshots: Generations, payloads: Generations, *, key: str, keep: int = 2, poll_s: float = 5.0
    ) -> None:
        self.snapshots, self.payloads, self.key = snapshots, payloads, key
        self._keep, self._poll_s = keep, poll_s
        self._finished: Callable[[], bool] = lambda: False

    @abstractmethod
    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        """Fill `folder` with what the snapshot in `snapshot.path` gives; depends on the arguments alone.

        Long work calls `check` now and then. After a kill the folder is given again as it was left.

        Args:
            snapshot: held, so that it does not vanish.
            before: the result that this one follows on; `turn` counts them.
            folder: empty, or left by a killed attempt with the same arguments.
        """

    def check(self) -> None:
        """Raises `RefreshStopped` if the trainer has finished."""
        if self._finished():
            raise RefreshStopped

    @staticmethod
    def turn(before: Generation | None) -> int:
        """0 for the first result, then 1, 2, …"""
        return int(before.meta["turn"]) + 1 if before is not None else 0

    def watch(self, finished: Callable[[], bool], *, sleep: Callable[[float], None] = time.sleep) -> int:
        """Refresh for every newer snapshot until `finished()`; returns how many refreshes that
        were.

        A refresh that is under way when the trainer finishes is given up.

        Raises:
            MismatchedArtifactError: the snapshots are of a run about something else.
            ArtifactError: a snapshot is damaged.
        """
        self._finished, refreshes = finished, 0
        if self.snapshots.newest() is None:
            log.info("waiting for the trainer's first snapshot in %s", self.snapshots.directory)
        while not finished():
            made = self.payloads.all(key=self.key)
            snapshot, newest = self.snapshots.newest(), made[-1] if made else None
            if snapshot is None or (newest is not None and newest.meta["snapshot"] == snapshot.version):
                sleep(self._poll_s)
                continue
            try:
                self.refresh(snapshot, before=newest)
                refreshes += 1
            except IncompleteArtifactError:
                if self.snapshots.find(snapshot.version) is not None:
                    raise
                log.info("snapshot %s was replaced by a newer one", snapshot.version)
                sleep(self._poll_s)
            except RefreshStopped:
                log.info("the trainer has finished: the refresh of step %d is given up", snapshot.step)
        return refreshes

    def refresh(self, snapshot: Generation, *, before: Generation | None) -> Generation:
        """Publish what one snapshot gives, or find it published already.

        Raises:
            IncompleteArtifactError: the snapshot is gone, or damaged.
            MismatchedArtifactError: it is of a run about something else.
            RefreshStopped: see `check`.
            ResourceError: another process refreshes here.
        """
        if snapshot.meta.get("key") != self.key:
            raise MismatchedArtifactError(
                f"{snapshot.path} is of a run with other examples, or another corpus",
                hint="start trainer and refresher with the same configuration and data, or choose another "
                "--out",
            )
        meta = {
            "key": self.key,
            "snapshot": snapshot.version,
            "turn": self.turn(before),
            "before": before.version if before is not None else None,
        }
        for known in self.payloads.all():
            if known.meta == meta and known.step == snapshot.step:
                log.info("%s of this snapshot is published already", known.version)
                return known
        started = time.monotonic()
        with ExitStack() as stack:
            held = stack.enter_context(self.snapshots.hold(snapshot))
            old = stack.enter_context(self.payloads.hold(before)) if before is not None else None
            published = self.payloads.publish(
                lambda folder: self.build(held, old, folder), step=snapshot.step, meta=meta, resume=True
            )
        self.payloads.prune(self._keep)
        log.info("%s of step %d after %.0f s", published.version, published.step, time.monotonic() - started)
        return published
