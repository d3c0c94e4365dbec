"""Every recipe can be reached by name, from Python as from the command line."""

import json
from pathlib import Path

import pytest

import rag
from rag.config import preset_names
from rag.core.errors import ConfigError, DataError
from rag.recipes import RECIPES, read_config, recipe_class
from tests.support.messages import refusal
from tests.support.processes import run_python


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipes_exist_and_know_their_name(name: str) -> None:
    assert recipe_class(name).recipe == name
    assert preset_names(name) or name == "static"  # whose defaults are what is used


def test_a_wrong_name_and_a_test_set_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    examples = tmp_path / "t.json"
    judged = tmp_path / "nq-test.json"
    for path in (examples, judged):
        path.touch()
    with refusal(ConfigError):
        rag.train("dprr", tmp_path / "run")
    with refusal(ConfigError):
        rag.train("dpr", tmp_path / "run", config="dpr-tiny")
    with refusal(ConfigError):
        rag.train("dpr", tmp_path / "run", train_files=[examples], validation_file=judged)
    assert not (tmp_path / "run").exists()


REFUSED = """
import contextlib, io, json, sys
from rag.cli.main import main
for arguments, message in json.load(sys.stdin):
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        try: main(arguments)
        except SystemExit as ended: assert ended.code in (2, 3, 4), shown.getvalue()
        else: raise AssertionError(arguments)
    assert message in shown.getvalue(), (arguments, shown.getvalue())
"""


def test_wrong_settings_of_every_recipe_are_refused(tmp_path: Path) -> None:
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "q", "answers": ["a"], "positive_ctxs": [{"text": "a"}]}')
    index = tmp_path / "index"
    index.mkdir()
    (index / "manifest.json").write_text('{"format_version": 1, "kind": "index"}')
    cases = [
        [["train", "rag", "--warmup-fraction", "0.1", "--out", "run"], "set warmup_steps, which"],
        [["train", "rag", "--document-side", "frozen", "--out", "run"], "set frozen: passage"],
    ]
    for recipe in RECIPES:
        kind = recipe_class(recipe)
        trained = "--corpus" if recipe in ("ict", "mlm", "realm") else "--train"
        needed = [
            trained,
            str(questions),
            *["--index", str(index)] * ("index" in kind.model_fields),
        ]
        needed += ["--generator", "owner/name"] * (recipe in ("rag", "emdr2"))
        # their stages have no default
        if preset := {"generator": "fid-small", "reader": "reader-squad"}.get(recipe):
            needed += ["--config", preset]
        batch = "steps_" if recipe in ("reader", "generator") else "batch_sise"
        wrong = {
            (*needed, "--set", f"{batch}=3"): f"unknown setting '{batch}'",
            (*needed, "--set", "save_every_s=soon"): "save_every_s = 'soon': ",
            (trained, "nope.json", *needed[2:]): "nope.json: no such file",
            (*needed[:2], *needed): "two sets"
            if recipe == "reader"
            else f"{questions} is given twice",
        }
        if "index" in kind.model_fields:
            wrong[(*needed[:2], "--index", str(tmp_path), *needed[4:])] = "has no manifest.json"
        cases += [
            [["train", recipe, *rest, "--out", "run"], message] for rest, message in wrong.items()
        ]
    run_python(REFUSED, input=json.dumps(cases), cwd=tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_missing_file_or_index_is_named_with_its_parameter(tmp_path: Path) -> None:
    with refusal(DataError, "train_files"):
        rag.train("dpr", tmp_path / "run", train_files=["nope.json"])
    later = {"out": tmp_path / "run", "train_files": [tmp_path / "run" / "round-1"]}
    read_config(recipe_class("dpr"), None, {**later, "validation_file": "hf:owner/name:dev"})
    with refusal(DataError, "index"):
        read_config(recipe_class("dpr"), None, {**later, "index": tmp_path / "other"})
    assert not (tmp_path / "run").exists()
