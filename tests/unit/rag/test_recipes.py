"""Every recipe can be reached by name, from Python as from the command line."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import rag
from rag.cli.train import app
from rag.config import preset_names
from rag.core.errors import ConfigError
from rag.recipes import RECIPES


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipes_exist_and_know_their_name(name: str) -> None:
    for place in (RECIPES[name].config, RECIPES[name].run):
        module, _, attribute = place.partition(":")
        assert hasattr(import_module(module), attribute)
    module, _, attribute = RECIPES[name].config.partition(":")
    assert getattr(import_module(module), attribute).recipe == name
    assert preset_names(name)


def test_the_command_line_has_the_same_recipes() -> None:
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback is not None}
    assert commands - {"stop"} == set(RECIPES)  # a rule is learned, no network trained


def test_wrong_names_and_settings_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'dpr'"):
        rag.train("dprr", tmp_path / "run")
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        rag.train("dpr", tmp_path / "run", train_files=["t.json"], learning_rat=1e-5)
    with pytest.raises(ConfigError, match="test"):
        rag.train("dpr", tmp_path / "run", train_files=["t.json"], validation_file="nq-test.json")
    assert not (tmp_path / "run").exists()
