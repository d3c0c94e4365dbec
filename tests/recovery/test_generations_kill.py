"""A publisher that is killed at any moment leaves a folder whose newest generation is whole."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rag.core.errors import ArtifactError, IncompleteArtifactError
from rag.core.manifest import verify_files
from rag.training.refresh import generations as module
from rag.training.refresh.generations import Generations
from tests.worlds import start_process


def build(folder: Path) -> None:
    for number in range(8):
        (folder / f"part-{number}").write_bytes(os.urandom(2000))


def publish_for_ever(place: Path) -> None:
    generations = Generations(place)
    for step in range(100_000):
        generations.publish(build, step=step)
        generations.prune(keep=2)


@pytest.mark.parametrize("attempt", range(6))
def test_kill_anywhere(tmp_path: Path, attempt: int) -> None:
    child = start_process(publish_for_ever, tmp_path)
    generations = Generations(tmp_path)
    deadline = time.monotonic() + 60
    while generations.newest() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    numbers = []
    until = time.monotonic() + random.Random(attempt).uniform(0.05, 0.4)
    while time.monotonic() < until:  # a reader beside the publisher, which prunes all the time
        seen = generations.newest()
        assert seen is not None
        with suppress(IncompleteArtifactError), generations.hold(seen) as held:  # unless it was just pruned
            verify_files(held.path, held.files, deep=True)
            numbers.append(held.number)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert numbers == sorted(numbers)
    newest = generations.newest()
    assert newest is not None
    verify_files(newest.path, newest.files, deep=True)
    assert newest.number >= numbers[-1]
    after = generations.publish(build, step=0)
    assert after.number > newest.number
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".staging", ".gone"))]
    for generation in generations.all():
        verify_files(generation.path, generation.files, deep=True)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def publish_and_die_at(place: Path, where: str) -> None:
    if where == "build":
        Generations(place).publish(_die, step=2)
    owner, name = (module, where) if hasattr(module, where) else (Generations, where)
    setattr(owner, name, _die)
    Generations(place).publish(build, step=2)


@pytest.mark.parametrize(
    "where", ["build", "file_table", "write_manifest", "_seal", "fsync_tree", "fsync_path"]
)
def test_kill_at_every_stage(tmp_path: Path, where: str) -> None:
    generations = Generations(tmp_path)
    first = generations.publish(build, step=1)
    child = start_process(publish_and_die_at, tmp_path, where)
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    second = generations.newest()
    assert (second == first) == (where != "fsync_path")  # it counts once it is renamed
    third = generations.publish(build, step=3)
    assert third.number == (3 if where == "fsync_path" else 2)
    assert generations.newest() == third


def hold_and_wait(place: Path, ready: Path) -> None:
    generations = Generations(place)
    with generations.hold(generations.all()[-1]):
        ready.touch()
        time.sleep(120)


def test_a_hold_ends_with_its_process(tmp_path: Path) -> None:
    place, ready = tmp_path / "g", tmp_path / "ready"
    generations = Generations(place)
    first = generations.publish(build, step=1)
    child = start_process(hold_and_wait, place, ready)
    while not ready.exists():
        time.sleep(0.005)
    generations.publish(build, step=2)
    assert generations.prune(keep=1) == []
    verify_files(first.path, first.files, deep=True)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert generations.prune(keep=1) == [1]
    with pytest.raises(ArtifactError):
        verify_files(first.path, first.files, deep=True)
