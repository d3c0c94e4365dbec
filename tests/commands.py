"""Commands run in this process."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from cyclopts import App

from rag.cli.main import main, make_app


def exit_code(*arguments: object) -> int:
    """Run `rag` with these arguments, and return the exit code."""
    try:
        main(list(map(str, arguments)))
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def subcommands(name: str) -> dict[str, App]:
    """The commands of a group by name; the command itself under "" where it is none."""
    group = make_app([name])[name]
    names = [sub for sub in group if not sub.startswith("-")]
    if not names:
        return {"": group}
    return {sub: make_app([name, sub])[name][sub] for sub in names}


class Ran(NamedTuple):
    """Exit code of a command, and what it printed."""

    exit_code: int
    output: str


def run_command(words: Sequence[str]) -> Ran:
    """Run `rag` with these words, and keep what it prints."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = exit_code(*words)
    return Ran(code, output.getvalue())
