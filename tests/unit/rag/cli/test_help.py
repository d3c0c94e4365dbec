"""Help of every command: light, in panels, with the choices that the settings have."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cyclopts import App

from rag.cli.main import COMMANDS
from rag.recipes import RECIPES
from tests.commands import exit_code, subcommands


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code, output = exit_code(*arguments), capsys.readouterr()
    return code, output.out, output.err


def test_help_lists_every_command_and_neither_it_nor_a_command_imports_anything_heavy() -> None:
    code = (
        "import sys\n"
        "from rag.cli.main import COMMANDS, main, make_app\n"
        "heavy = {'torch', 'transformers', 'datasets', 'faiss', 'pyarrow', 'scipy', 'numpy'}\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "for name in [*sorted(set(COMMANDS) - {'bench'}), 'bench']:\n"
        "    make_app([name])\n"
        "    imported = (heavy - {'numpy'} if name == 'bench' else heavy) & set(sys.modules)\n"
        "    assert not imported, (name, imported)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f" {name} " in done.stdout for name in COMMANDS)


def test_the_help_of_a_recipe_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from rag.cli.main import main\n"
        "from rag.recipes import RECIPES\n"
        "for name in RECIPES:\n"
        "    try: main(['train', name, '--help'])\n"
        "    except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'faiss', 'pyarrow', 'scipy', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: rag train ") == len(RECIPES)


def test_the_help_of_the_server_lists_its_variables_with_their_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from serve.settings import ServeSettings

    _, text, _ = _run(capsys, "serve", "--help")
    shown = " ".join(re.sub("[^\\w() .,:-]", " ", text).split())
    for name, field in ServeSettings.model_fields.items():
        if f"--{name.replace('_', '-')}" in text or name == "host":
            continue
        stated = "none" if field.default in (None, ()) else f"{field.default}"
        if isinstance(field.default, float):
            stated = f"{field.default:g}"
        if isinstance(field.default, int):
            stated = str(field.default)
        assert f"RAG_SERVE_{name.upper()} ({stated}" in shown, name


def _all_commands() -> Iterator[tuple[str, App]]:
    for name in COMMANDS:
        yield from ((f"{name} {sub}".strip(), each) for sub, each in subcommands(name).items())


def test_every_command_has_help_in_panels(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in _all_commands():
        code, out, _ = _run(capsys, *name.split(), "--help")
        assert code == 0
        assert f"Usage: rag {name}" in out
        arguments = [
            each for each in command.assemble_argument_collection(parse_docstring=True) if each.show
        ]
        unexplained = [each.name for each in arguments if not each.parameter.help]
        assert not unexplained, name
