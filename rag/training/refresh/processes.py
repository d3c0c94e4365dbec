"""Trainer and refresher as two processes: their roles, the end of training, and heartbeats.

    finished.json                                       the trainer has finished
    heartbeat-trainer.json, heartbeat-refresher.json    each process writes one and reads the other's
    refresher/                                          locked by the process that refreshes

A process that was killed or stopped is reported by the other within half a minute. A thread writes the beats,
so they continue while a process evaluates or encodes for hours, and cease when it is killed or stopped.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

from rag.core.errors import DataError, ResourceError
from rag.core.files import atomic_write_json, directory_lock, read_json
from rag.core.log import get_logger
from rag.runtime.hardware import use_threads
from rag.training.claim import claim_run
from rag.training.distributed import World

TrainerRole = Literal["both", "trainer"]
"""Role of a training process: "both" refreshes by itself, "trainer" leaves that to another process."""

Side = Literal["trainer", "refresher"]

BEAT_S, SILENT_S = 2.0, 20.0
_FINISHED = "finished.json"

log = get_logger(__name__)


@contextmanager
def trainer_process(out: Path, world: World, role: TrainerRole) -> Iterator[None]:
    """Context of a trainer at work in `out`; its refresher stops when training is finished, not if it fails.

    Raises:
        ResourceError: the trainer is to refresh the index itself, and a refresher works there.
    """
    with ExitStack() as stack:
        if world.is_main:
            in_line = role == "both"
            stack.enter_context(directory_lock(out / "refresher") if in_line else Heartbeat(out, "trainer"))
            (out / _FINISHED).unlink(missing_ok=True)
        yield
        if world.is_main:
            atomic_write_json(out / _FINISHED, {"finished": True})
        world.barrier()


@contextmanager
def refresher_process(config: Any) -> Iterator[Callable[[], bool]]:
    """Context of a refresher for the trainer in `config.out`.

    Its value is a function that returns whether the trainer has finished, and raises `ResourceError` if the
    trainer's heartbeats have ceased.

    Args:
        config: configuration of the trainer, with `out` and `run`.

    Raises:
        MismatchedArtifactError: the run there has another configuration, or other data.
        ResourceError: another process refreshes there.
    """
    claim_run(config, config.out, writes=False)
    use_threads(config.run.threads)
    with directory_lock(config.out / "refresher"), Heartbeat(config.out, "refresher") as heartbeat:

        def finished() -> bool:
            if (config.out / _FINISHED).exists():
                return True
            _refuse(heartbeat.silence)
            return False

        yield finished


class Watch:
    """Follows the beats of one side of the run in `out`; a side that never started is not reported.

    Checks count only if they are no more than a few beats apart: after a longer pause this process itself was
    stopped, and the other, which may have been stopped with it, gets time to continue.
    """

    def __init__(self, out: Path, side: Side) -> None:
        self._path, self._side = _path(out, side), side
        self._last: Any = None
        self._heard = self._looked = time.monotonic()

    def silence(self) -> str:
        """A sentence that names the process if its beats have ceased, otherwise ""."""
        beat, now = None, time.monotonic()
        with suppress(DataError):  # there is none
            beat = read_json(self._path)
        if beat != self._last or now - self._looked > SILENT_S / 2:
            self._last, self._heard = beat, now
        self._looked = now
        if beat is None or now - self._heard < SILENT_S:
            return ""
        return (
            f"the {self._side} (process {beat['process']} on {beat['host']}) has shown no sign of life for "
            f"{now - self._heard:.0f} s: it was killed, or is stopped"
        )

    def check(self) -> None:
        """Refuse to wait for a process whose heartbeats have ceased.

        Raises:
            ResourceError: its beats have ceased; the message names the process.
        """
        _refuse(self.silence())


class Heartbeat:
    """Writes this side's beats inside a `with` block, and warns when those of the other side cease.

    Attributes:
        silence: see `Watch.silence`, as of the last beat.
    """

    def __init__(self, out: Path, side: Side) -> None:
        self._path, self._side = _path(out, side), side
        self._watch = Watch(out, "refresher" if side == "trainer" else "trainer")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.silence = ""

    def __enter__(self) -> Heartbeat:
        self._write(0)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if kind is None:
            self._path.unlink(missing_ok=True)  # who has finished is not missed

    def _beat(self) -> None:
        for number in count(1):
            if self._end.wait(BEAT_S):
                return
            try:
                self._write(number)
            except OSError as error:
                log.warning("cannot write %s: %s", self._path, error)
            silence = self._watch.silence()
            if silence and not self.silence:
                log.warning("%s", silence)
            elif self.silence and not silence:
                log.info("the other process is back")
            self.silence = silence

    def _write(self, number: int) -> None:
        """Not flushed, unlike other files: a busy disk must not stop the heart."""
        temporary = self._path.with_suffix(".new")
        beat = {"process": os.getpid(), "host": socket.gethostname(), "beat": number}
        temporary.write_text(json.dumps(beat), encoding="utf-8")
        os.replace(temporary, self._path)


def _path(out: Path, side: Side) -> Path:
    return out / f"heartbeat-{side}.json"


def _refuse(silence: str) -> None:
    if silence:
        raise ResourceError(silence, hint="start it again, and then this command; what was finished is kept")
