"""Trainer and refresher in two processes: who is killed or stopped is named, who only works long is not."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rag.core.errors import ResourceError
from rag.training.config import RefreshedConfig, RunConfig
from rag.training.distributed import World
from rag.training.refresh import processes
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generations
from rag.training.refresh.processes import BEAT_S, SILENT_S, refresher_process, trainer_process
from tests.worlds import start_process, wait_until

QUICK = {"BEAT_S": 0.2, "SILENT_S": 3.0}


class _Config(RefreshedConfig):
    out: Path
    run: RunConfig = RunConfig()


def _hurry() -> None:
    for name, value in QUICK.items():
        setattr(processes, name, value)


def _works_long() -> None:
    while True:
        sum(range(10**6))


def _train(out: Path) -> None:
    _hurry()
    with trainer_process(out, World.single("cpu"), "trainer"):
        _works_long()


def _refresh(out: Path) -> None:
    _hurry()
    with refresher_process(_Config(out=out)):
        _works_long()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setattr(processes, name, value)


@pytest.fixture(params=[signal.SIGKILL, signal.SIGSTOP])
def begin(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Callable[[Path], None], str], Callable[[], str]]]:
    """Starts the other process and waits for its first beat; gives a function that ends it and names it."""
    begun = []

    def start(function: Callable[[Path], None], side: str) -> Callable[[], str]:
        process = start_process(function, tmp_path)
        begun.append(process)
        wait_until((tmp_path / f"heartbeat-{side}.json").exists)

        def end() -> str:
            os.kill(process.pid or 0, request.param)
            return rf"the {side} \(process {process.pid} on \S+\) has shown no sign of life for \d+ s"

        return end

    yield start
    for process in begun:
        process.kill()
        process.join(60)


def test_a_lost_trainer_is_named_within_half_a_minute(
    tmp_path: Path, begin: Callable[..., Callable[[], str]]
) -> None:
    assert SILENT_S + 2 * BEAT_S < 30
    end = begin(_train, "trainer")
    with refresher_process(_Config(out=tmp_path)) as finished:
        working = time.monotonic() + 1.5 * QUICK["SILENT_S"]
        wait_until(lambda: finished() or time.monotonic() > working)  # a long evaluation is no silence
    with (
        pytest.raises(ResourceError, match=end()),
        refresher_process(_Config(out=tmp_path)) as finished,  # the beats of the past are no sign of life
    ):
        wait_until(finished, limit_s=10 * QUICK["SILENT_S"])


def test_a_lost_refresher_is_named_and_not_waited_for(
    tmp_path: Path, begin: Callable[..., Callable[[], str]], caplog: pytest.LogCaptureFixture
) -> None:
    end = begin(_refresh, "refresher")
    exchange = Exchange(
        _Config(out=tmp_path, poll_s=0.1), Generations(tmp_path / "snapshots"),
        Generations(tmp_path / "made"),
        lambda folder: (folder / "model").touch(), lambda _: {},
        world=World.single("cpu"), must_wait=lambda: True, in_line=False,
    )  # fmt: skip
    with trainer_process(tmp_path, World.single("cpu"), "trainer"):
        named = re.compile(end())
        wait_until(lambda: named.search(caplog.text))
        with pytest.raises(ResourceError, match=named):
            exchange.before_step(0)


def test_one_refreshes_at_a_time(tmp_path: Path) -> None:
    def in_line() -> AbstractContextManager[None]:
        return trainer_process(tmp_path, World.single("cpu"), "both")

    def beside() -> AbstractContextManager[Callable[[], bool]]:
        return refresher_process(_Config(out=tmp_path))

    for first, second in ((in_line, beside), (beside, in_line), (beside, beside)):
        with first(), pytest.raises(ResourceError, match="another process is writing"), second():
            pass
