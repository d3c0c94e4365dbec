"""Every `rag …` command that the documents show is one that today's command line takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cyclopts import App, CycloptsError, MissingArgumentError
from pydantic import ValidationError

from rag.cli.main import COMMANDS
from rag.config import parse_overrides, preset_names
from rag.core.errors import ConfigError
from rag.recipes import recipe_class
from tests.commands import subcommands

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "rag" / "bench"
NOTES = sorted((BENCH / "notes").glob("*.md"))
GUIDES = sorted((ROOT / "rag" / "docs").glob("*.md"))
PRESETS = sorted((ROOT / "rag" / "presets").glob("*.yaml"))
_COMMAND = re.compile(r"^(?:\$ )?(?:torchrun .*-m rag\.cli\.main|rag) (.+)$")
_LEFT_OUT = {"…", "..."}


class Shown(NamedTuple):
    """A command in a document.

    Attributes:
        words: what follows `rag`, without "…".
        is_whole: it can be typed as it stands; a fragment in running text may leave out required
            options.
    """

    words: tuple[str, ...]
    is_whole: bool


def commands_of(text: str, *, is_preset: bool = False) -> Iterator[Shown]:
    """Commands of a Markdown document, or of a preset's comment: in blocks, and between
    backquotes.
    """
    if is_preset:
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        blocks = re.findall(r"^  .*$", text.replace("\\\n", " "), flags=re.MULTILINE)
        rest = text
    else:
        fences = r"^```\w*\n(.*?)^```$"
        result = re.findall(fences, text, flags=re.MULTILINE | re.DOTALL)
        blocks = [line for block in result for line in block.replace("\\\n", " ").splitlines()]
        rest = re.sub(fences, "", text, flags=re.MULTILINE | re.DOTALL)
    for line in blocks:
        is_whole = "…" not in line and "(" not in line
        for part in re.sub(r"\s\([^)]*\)", "", line).split("; "):
            yield from _shown(part.strip(), is_whole=is_whole)
    for span in re.findall(r"`([^`]+)`", rest):
        yield from _shown(re.sub(r"\s+", " ", span), is_whole=False)


def _shown(line: str, *, is_whole: bool) -> Iterator[Shown]:
    if match := _COMMAND.match(line):
        words = shlex.split(match[1], comments=True)
        yield Shown(tuple(word for word in words if word not in _LEFT_OUT), is_whole)


def check(shown: Shown) -> None:
    """Parse a command without running it.

    Raises:
        ValueError: no such command, option, choice, preset or setting, or a required option is left
            out.
    """
    name, *words = shown.words
    if name not in COMMANDS:
        raise ValueError(f"there is no command {name!r}")
    commands = subcommands(name)
    recipe = ""
    if "" in commands:
        command = commands[""]
    else:
        if not words:
            return
        sub, *words = words
        if ".py:" in sub:  # a recipe of one's own
            return
        if sub not in commands:
            raise ValueError(f"`rag {name}` has no {sub!r}")
        command = commands[sub]
        recipe = sub if name == "train" else ""
    given = _parsed(command, words, is_whole=shown.is_whole)
    recipe = str(given.get("recipe") or recipe)
    if name == "adapt":
        recipe = "dpr"
    source = given.get("config")
    if (
        source
        and source not in preset_names(recipe)
        and Path(source).suffix not in (".yaml", ".json")
    ):
        raise ValueError(f"no preset {source!r} for {recipe!r}")
    if assignments := given.get("set_"):
        _check_settings(recipe, assignments)


def _parsed(command: App, words: list[str], *, is_whole: bool) -> dict[str, Any]:
    try:
        _, bound, _ = command.parse_args(words, exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        missing = error.argument
        flag = missing.name if missing is not None else ""
        if is_whole or missing is None or flag in words:
            raise ValueError(str(error)) from error
        # A fragment may leave out what a command needs.
        value = next(iter(missing.get_choices() or ()), "1")
        added = [flag, value] if flag.startswith("-") else [value]
        return _parsed(command, [*words, *added], is_whole=False)
    except CycloptsError as error:
        raise ValueError(str(error)) from error
    return dict(bound.arguments)


def _check_settings(recipe: str, assignments: list[str]) -> None:
    """Refuse settings that the recipe's configuration lacks, and values of another type."""
    kind = recipe_class(recipe)
    try:
        kind.model_validate(parse_overrides(assignments))
    except ConfigError as error:
        raise ValueError(str(error)) from error
    except ValidationError as error:
        wrong = [issue for issue in error.errors() if issue["type"] != "missing"]
        if wrong:
            raise ValueError(f"{recipe}: {wrong[0]['loc']}: {wrong[0]['msg']}") from error


DOCUMENTS = [ROOT / "README.md", BENCH / "RESULTS.md", *NOTES, *GUIDES, *PRESETS]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_the_documents_are_taken(path: Path) -> None:
    wrong = []
    for shown in commands_of(path.read_text(encoding="utf-8"), is_preset=path.suffix == ".yaml"):
        try:
            check(shown)
        except ValueError as error:
            wrong.append(f"rag {shlex.join(shown.words)}: {error}")
    assert not wrong, "\n".join(wrong)


def _all_options() -> set[str]:
    commands = [command for name in COMMANDS for command in subcommands(name).values()]
    arguments = [each for item in commands for each in item.assemble_argument_collection()]
    return {flag for argument in arguments for flag in (*argument.names, *argument.negatives)}


def test_options_in_running_text_exist() -> None:
    known = _all_options() | {"--help", "--debug"}
    missing = []
    for path in DOCUMENTS:
        for span in re.findall(r"`(--[^`]+)`", path.read_text(encoding="utf-8")):
            flags = {word.partition("=")[0] for word in re.findall(r"(?<!\S)--\w[\w-]*", span)}
            missing += [f"{path.name}: {flag}" for flag in sorted(flags - known)]
    assert not missing


@pytest.mark.parametrize(
    "path", [path for path in NOTES if path.stem != "README"], ids=lambda path: path.name
)
def test_every_note_shows_a_command(path: Path) -> None:
    assert list(commands_of(path.read_text(encoding="utf-8")))


def test_every_code_of_the_results_names_a_command_of_the_notes() -> None:
    text = (BENCH / "RESULTS.md").read_text(encoding="utf-8")
    last_cells = re.findall(r"\| ([^|]+) \|$", text, flags=re.MULTILINE)
    cited = set(re.findall(r"\b[A-Z]\d{1,2}\b", " ".join(last_cells)))
    notes = "\n".join(path.read_text(encoding="utf-8") for path in NOTES)
    defined = re.findall(r"\*\*\[([A-Z]\d{1,2})\]\*\*", notes)
    assert len(cited) > 30
    assert cited <= set(defined), cited - set(defined)
