"""Build what the trainer loads (an index, mined negatives) from its snapshots, once or until it finishes."""

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
    """Raised in a refresh to stop it, because the trainer has finished and no longer needs it."""


class Refresher(ABC):
    """Builds results from snapshots and publishes them. Subclasses implement `build`.

    Args:
        key: identifies the run's examples and corpus; the trainer must use the same key.
        keep: number of results to keep on disk, besides those that the trainer's checkpoints need.
    """

    def __init__(
        self, snapshots: Generations, payloads: Generations, *, key: str, keep: int = 2, poll_s: float = 5.0
    ) -> None:
        self.snapshots, self.payloads, self.key = snapshots, payloads, key
        self._keep, self._poll_s = keep, poll_s
        self._finished: Callable[[], bool] = lambda: False

    @abstractmethod
    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        """Build the result of the snapshot in `snapshot.path` in `folder`; it depends only on the arguments.

        Long-running implementations call `check` now and then. After an interruption, `build` is called again
        with the folder as it was left.

        Args:
            snapshot: the snapshot, which is not deleted during the call.
            before: the previous result, if there is one; `turn` gives the number of the new one.
            folder: empty, or left by an interrupted call with the same arguments.
        """

    def check(self) -> None:
        """Raise `RefreshStopped` if the trainer has finished."""
        if self._finished():
            raise RefreshStopped

    @staticmethod
    def turn(before: Generation | None) -> int:
        """Number of the result to build: 0 for the first, then 1, 2, …"""
        return int(before.meta["turn"]) + 1 if before is not None else 0

    def watch(self, finished: Callable[[], bool], *, sleep: Callable[[float], None] = time.sleep) -> int:
        """Refresh for every newer snapshot until `finished()`; returns how many refreshes that
        were.

        A refresh that is running when the trainer finishes is abandoned.

        Raises:
            MismatchedArtifactError: the snapshots are of a run with other examples or another corpus.
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
        """Build and publish the result of one snapshot, unless it is published already.

        Raises:
            IncompleteArtifactError: the snapshot is gone, or damaged.
            MismatchedArtifactError: it is of a run with other examples or another corpus.
            RefreshStopped: see `check`.
            ResourceError: another process refreshes in this folder.
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
