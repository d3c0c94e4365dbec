"""The groups of settings of training recipes, and whose a run's folder is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import ValidationError

from rag.config import Config
from rag.core.errors import MismatchedArtifactError
from rag.core.files import read_json
from rag.training.claim import check_run, claim_run
from rag.training.config import OptimConfig, RunConfig


class _Recipe(Config):
    optim: OptimConfig = OptimConfig(learning_rate=1e-4, clip_norm=1.0)
    run: RunConfig = RunConfig(seed=3)


def test_stopping_early_needs_something_to_stop_by() -> None:
    with pytest.raises(ValidationError, match="early_stop needs"):
        RunConfig(early_stop=2)
    with pytest.raises(ValidationError, match="greater than 0"):
        OptimConfig(learning_rates={"head": 0.0})


class _Claimed(_Recipe):
    recipe: ClassVar[str] = "toy"
    free: ClassVar[frozenset[str]] = frozenset({"notes"})

    train_files: tuple[Path, ...] = ()
    notes: str = ""


def test_a_folder_belongs_to_one_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = _Claimed(train_files=(Path("train.json"),))
    claim_run(config, tmp_path)
    claim_run(config.replaced(seed=4), tmp_path)  # nothing was trained yet
    said = read_json(tmp_path / "config.json")
    assert (said["recipe"], said["seed"], said["train_files"]) == ("toy", 4, [str(tmp_path / "train.json")])
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    claim_run(config.replaced(seed=4, notes="more", threads=2), tmp_path)
    with pytest.raises(MismatchedArtifactError, match=r"other values of seed, train_files\b"):
        claim_run(config.replaced(seed=5, train_files=("other.json",)), tmp_path)
    before = (tmp_path / "config.json").read_text()
    check_run(config.replaced(seed=4, notes="still more"), tmp_path)  # who helps the run, and says nothing
    with pytest.raises(MismatchedArtifactError, match=r"other values of seed\b"):
        check_run(config.replaced(seed=5), tmp_path)
    assert (tmp_path / "config.json").read_text() == before


def test_a_run_from_before_a_setting_was_there_goes_on(tmp_path: Path) -> None:
    config = _Claimed(ema=0.5)  # type: ignore[call-arg]
    claim_run(config, tmp_path)
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000001" / "state.json").write_text("{}")
    said = read_json(tmp_path / "config.json")
    del said["learning_rates"], said["ema"]
    (tmp_path / "config.json").write_text(json.dumps(said))
    claim_run(config.replaced(ema=0.0), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(MismatchedArtifactError, match="other values of ema"):
        claim_run(config, tmp_path)
