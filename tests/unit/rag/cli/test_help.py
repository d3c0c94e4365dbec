"""Help of every command: light, in panels, with the choices that the settings have."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rag.cli.main import _COMMANDS
from tests.commands import exit_code, subcommands


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code, output = exit_code(*arguments), capsys.readouterr()
    return code, output.out, output.err


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from rag.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'faiss', 'pyarrow', 'numpy', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f" {name} " in done.stdout for name in _COMMANDS)


def test_help_of_a_command_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from rag.cli.main import _COMMANDS, load_command\n"
        "heavy = {'torch', 'transformers', 'datasets', 'faiss', 'pyarrow', 'scipy'}\n"
        "for name in [*sorted(set(_COMMANDS) - {'bench'}), 'bench']:\n"
        "    load_command(name)\n"
        "    found = (heavy if name == 'bench' else heavy | {'numpy'}) & set(sys.modules)\n"
        "    assert not found, (name, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _all_commands() -> Iterator[tuple[str, Any]]:
    for name in _COMMANDS:
        yield from ((f"{name} {sub}".strip(), each) for sub, each in subcommands(name).items())


def test_every_command_has_help_in_panels(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in _all_commands():
        code, out, _ = _run(capsys, *name.split(), "--help")
        assert code == 0
        assert f"Usage: rag {name} " in out
        options = [param for param in command.params if param.param_type_name == "option"]
        if len(options) > 6 and not name.startswith("bench"):
            assert [option.name for option in options if not option.rich_help_panel] == [], name
