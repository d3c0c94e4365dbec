"""Commands run in this process."""

from typing import Any

import pytest

from rag.cli.lazy import LazyGroup
from rag.cli.main import load_command, main


def exit_code(*arguments: object) -> int:
    """Run `rag` with these arguments, and return the exit code."""
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, arguments)))
    return int(caught.value.code or 0)


def subcommands(name: str) -> dict[str, Any]:
    """The commands of a group by name; the command itself under "" where it is none."""
    command = load_command(name)
    if isinstance(command, LazyGroup):
        return {each: command.load(each) for each in command.entries}
    return dict(getattr(command, "commands", None) or {"": command})
