"""A refresh in turn and beside the training: when results are used, what is kept, what a death
says.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import ConfigError, IncompleteArtifactError, ResourceError
from rag.core.files import atomic_write_json, directory_lock
from rag.training.run_folder import claim_run
from tests import toy_refresh
from tests.support.messages import refusal
from tests.support.processes import wait_until
from tests.toy_refresh import ToyConfig, ToyRun
from tests.worlds import start_process


def config(out: Path, **settings: Any) -> ToyConfig:
    made = ToyConfig(out=out, **settings)
    claim_run(made, out)
    return made


def names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "refresh").glob("step-*"))


def test_in_turn_every_result_is_used_at_once(tmp_path: Path) -> None:
    run = ToyRun(config(tmp_path))
    assert run.steps(0, 5) == ["0", "0", "2", "2", "4"]
    fields = run.hooks.log_fields(5)
    assert (fields["index_age_steps"], fields["length"]) == (1, 1.0)
    assert ToyRun(config(tmp_path / "b"), begins_with_result=True).steps(0, 4) == ["", "", "2", "2"]
    never = ToyRun(config(tmp_path / "c", refresh_every_steps=0))
    assert never.steps(0, 3) == [""] * 3
    assert never.hooks.log_fields(3) == {"index_age_steps": 3}


def test_beside_a_result_is_used_from_the_next_snapshot_on(tmp_path: Path) -> None:
    run = ToyRun(config(tmp_path, refresh_device="cpu"))
    assert run.steps(0, 5) == ["0", "0", "0", "0", "2"]  # training cannot begin without the first
    run.hooks.close()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_resumed_run_uses_the_same_results(
    tmp_path: Path, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ToyRun(config(tmp_path / "whole", refresh_device=device))
    expected = whole.steps(0, 7)
    first = ToyRun(config(tmp_path / "run", refresh_device=device))
    assert first.steps(0, 3) == expected[:3]
    state = json.loads(json.dumps(dict(first.hooks.extra_state())))
    first.steps(3, 6)
    first.hooks.close()
    built: list[str] = []
    copy_number = toy_refresh.copy_number

    def counted(config: ToyConfig, device: str, snapshot: Path, *given: Any) -> None:
        built.append(snapshot.parent.name)
        copy_number(config, device, snapshot, *given)

    if device is None:
        monkeypatch.setattr(toy_refresh, "copy_number", counted)
    resumed = ToyRun(config(tmp_path / "run", refresh_device=device))
    resumed.hooks.load_extra_state(state)
    assert resumed.steps(3, 7) == expected[3:]
    resumed.hooks.close()
    whole.hooks.close()
    assert built == (
        [] if device else ["step-00000006"]
    )  # what was made of the same snapshot is kept


def test_results_that_no_checkpoint_needs_are_deleted(tmp_path: Path) -> None:
    run = ToyRun(config(tmp_path))
    for step in range(7):
        run.steps(step, step + 1)
        checkpoint = tmp_path / "checkpoints" / f"step-{step + 1:08d}"
        checkpoint.mkdir(parents=True)
        state = {"step": step + 1, "hooks": dict(run.hooks.extra_state())}
        atomic_write_json(checkpoint / "state.json", state)
        if step > 2:
            (checkpoint.with_name(f"step-{step - 1:08d}") / "state.json").unlink()
        run.hooks.on_checkpoint()
    # The first checkpoint, such as the best, and the last two need theirs.
    assert names(tmp_path) == [f"step-{step:08d}" for step in (0, 4, 6)]


def test_what_cannot_go_on_is_refused(tmp_path: Path) -> None:
    run = ToyRun(config(tmp_path))
    run.steps(0, 1)
    state = dict(run.hooks.extra_state())
    (tmp_path / "refresh/step-00000000/result/done.json").unlink()
    with refusal(IncompleteArtifactError):
        ToyRun(config(tmp_path)).hooks.load_extra_state(state)
    with refusal(ConfigError):
        ToyRun(config(tmp_path / "b", refresh_device="cpu"), encode=print)


def test_the_death_of_the_refresher_is_noticed(tmp_path: Path) -> None:
    failing = ToyRun(config(tmp_path / "a", refresh_device="cpu", fails=7))
    with refusal(ResourceError):
        failing.steps(0, 3)
    killed = ToyRun(config(tmp_path / "b", refresh_device="cpu"), begins_with_result=True)
    killed.steps(0, 3)
    child = killed.hooks._child
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with refusal(ResourceError):
        killed.steps(3, 4)


def train_without_end(out: Path) -> None:
    ToyRun(config(out, refresh_device="cpu", sleeps=True)).steps(0, 1)  # waits for the first result


def test_the_refresher_ends_with_its_trainer(tmp_path: Path) -> None:
    trainer = start_process(train_without_end, tmp_path)
    step = tmp_path / "refresh/step-00000000"

    def works() -> bool:
        try:
            with directory_lock(step):
                return False
        except ResourceError:
            return True

    wait_until(lambda: (step / "result/text").exists())
    assert works()
    trainer.kill()
    wait_until(lambda: not works())
