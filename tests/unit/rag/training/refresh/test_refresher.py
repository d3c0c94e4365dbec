"""The refresher's side: what it refuses, what it does once, and when it gives up."""

import threading
from pathlib import Path

import pytest

from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError
from rag.training.refresh.generations import Generation
from tests.refreshing import Quick, publish, shelves


def test_a_refresher_refuses_what_is_not_its_trainers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots, index = shelves(tmp_path)
    refresher = Quick(snapshots, index, key="toy", poll_s=0.0)
    looks = iter([False, True])
    with caplog.at_level("INFO"):
        assert refresher.watch(lambda: next(looks)) == 0
    assert "waiting for the trainer's first snapshot" in caplog.text
    publish(snapshots, step=0, key="another")
    with pytest.raises(MismatchedArtifactError, match="other examples, or another corpus"):
        refresher.watch(lambda: False)


def test_a_damaged_snapshot_is_an_error_and_a_replaced_one_is_not(tmp_path: Path) -> None:
    snapshots, index = shelves(tmp_path)

    class Lacking(Quick):
        replaced = False

        def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
            if self.replaced:
                (snapshot.path / "manifest.json").unlink()
            raise IncompleteArtifactError("model.safetensors is missing", hint="")

    refresher = Lacking(snapshots, index, key="toy", poll_s=0.0)
    publish(snapshots, step=0)
    with pytest.raises(IncompleteArtifactError, match=r"model\.safetensors is missing"):
        refresher.watch(lambda: False)
    refresher.replaced = True
    looks = iter([False, False, True])
    assert refresher.watch(lambda: next(looks)) == 0


def test_a_refresh_that_nobody_waits_for_is_given_up(tmp_path: Path) -> None:
    snapshots, index = shelves(tmp_path)
    publish(snapshots, step=0)
    done = threading.Event()

    class Slow(Quick):
        def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
            self.check()
            done.set()  # the trainer finishes while the second half is due
            self.check()
            pytest.fail("the refresh went on")

    assert Slow(snapshots, index, key="toy").watch(done.is_set) == 0
    assert index.newest() is None


def test_started_again_it_does_not_make_its_last_result_again(tmp_path: Path) -> None:
    snapshots, index = shelves(tmp_path)
    refresher = Quick(snapshots, index, key="toy", poll_s=0.0)
    for step in range(2):
        publish(snapshots, step=step)
        naps: list[float] = []
        assert refresher.watch(lambda n=naps: bool(n), sleep=naps.append) == 1  # type: ignore[misc]
    looks = iter([False] * 10 + [True])
    assert refresher.watch(lambda: next(looks), sleep=naps.append) == 0
    assert len(naps) == 11  # it rests, instead of finding the same result again and again
