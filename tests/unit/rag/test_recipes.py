"""Every recipe can be reached by name, from Python as from the command line."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rag
from rag.cli.main import main
from rag.cli.train import app
from rag.config import preset_names
from rag.core.errors import ConfigError, DataError
from rag.recipes import RECIPES, check_files


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
    examples, judged = tmp_path / "t.json", tmp_path / "nq-test.json"
    for path in (examples, judged):
        path.touch()
    with pytest.raises(ConfigError, match="did you mean 'dpr'"):
        rag.train("dprr", tmp_path / "run")
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        rag.train("dpr", tmp_path / "run", train_files=[examples], learning_rat=1e-5)
    with pytest.raises(ConfigError, match="test"):
        rag.train("dpr", tmp_path / "run", train_files=[examples], validation_file=judged)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["dpr", "rag", "reader", "generator"])
def test_a_missing_file_is_told_before_torch_is_imported(recipe: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from rag.cli.main import main\n"
        f"try: main(['train', {recipe!r}, '--train', 'nope.json', '--out', 'run'])\n"
        "except SystemExit as ended: assert ended.code == 3, ended.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "error: nope.json: no such file\n" in done.stderr
    with pytest.raises(DataError, match=r"nope\.json: no such file"):
        rag.train("dpr", tmp_path / "run", train_files=["nope.json"])
    assert not list(tmp_path.iterdir())


def test_a_missing_option_of_a_group_is_named_as_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "q", "answers": ["a"]}')
    given = ["--config", "rag-small", "--train", str(tmp_path / "q.jsonl"), "--index", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(["train", "rag", *given, "--out", str(tmp_path / "run")])
    assert "--generator is not given" in capsys.readouterr().err


def test_files_in_the_folder_of_the_run_may_come_later(tmp_path: Path) -> None:
    check_files({"out": tmp_path, "train_files": [tmp_path / "round-1"], "index": "hf:owner/name"})
    with pytest.raises(DataError, match=r"other: no such file\n.*index names it"):
        check_files({"out": tmp_path / "run", "index": tmp_path / "other"})
