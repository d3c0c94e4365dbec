"""Help of every command: light, in panels, with the choices that the settings have."""

import re
from collections.abc import Iterator

from cyclopts import App

from rag.cli.main import COMMANDS
from rag.recipes import RECIPES
from tests.commands import run_successfully, subcommands
from tests.support.processes import run_python

HEAVY = "heavy = {'torch', 'transformers', 'datasets', 'faiss', 'pyarrow', 'scipy', 'numpy'}"
EVERY_COMMAND = f"""
import sys
from rag.cli.main import COMMANDS, main, make_app
{HEAVY}
try: main(['--help'])
except SystemExit: pass
assert not heavy & set(sys.modules), heavy & set(sys.modules)
for name in [*sorted(set(COMMANDS) - {{'bench'}}), 'bench']:
    make_app([name])
    imported = (heavy - {{'numpy'}} if name == 'bench' else heavy) & set(sys.modules)
    assert not imported, (name, imported)
"""
EVERY_RECIPE = f"""
import sys
from rag.cli.main import main
from rag.recipes import RECIPES
{HEAVY}
for name in RECIPES:
    try: main(['train', name, '--help'])
    except SystemExit: pass
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_help_lists_every_command_and_neither_it_nor_a_command_imports_anything_heavy() -> None:
    shown = run_python(EVERY_COMMAND)
    assert all(f" {name} " in shown for name in COMMANDS)


def test_the_help_of_a_recipe_imports_nothing_heavy() -> None:
    assert run_python(EVERY_RECIPE).count("Usage: rag train ") == len(RECIPES)


def test_the_help_of_the_server_lists_its_variables_with_their_defaults() -> None:
    from serve.settings import ServeSettings

    text = run_successfully("serve", "--help")
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


def test_every_command_has_help_in_panels() -> None:
    for name, command in _all_commands():
        shown = run_successfully(*name.split(), "--help")
        assert f"Usage: rag {name}" in shown
        # Defaults are spelled as they are typed.
        assert not re.findall(r"\[default:\s+[\[({\]]", shown), name
        arguments = [
            argument
            for argument in command.assemble_argument_collection(parse_docstring=True)
            if argument.show
        ]
        unexplained = [argument.name for argument in arguments if not argument.parameter.help]
        assert not unexplained, name
        options = {argument.field_info.name: argument.name for argument in arguments}
        for argument in arguments:
            others = set(re.findall(r"`(\w+)`", argument.parameter.help)) & options.keys()
            assert not others, (name, argument.name, others)
