"""Commands run in this process."""

import io
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
    out: str
    err: str

    @property
    def output(self) -> str:
        return self.out + self.err


def run_command(*arguments: object) -> Ran:
    """Run `rag` with these arguments, and keep what it prints."""
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = exit_code(*arguments)
    return Ran(code, out.getvalue(), err.getvalue())


def run_successfully(*arguments: object) -> str:
    """Run a command that has to succeed, and return what it prints."""
    ran = run_command(*arguments)
    assert ran.exit_code == 0, ran.output
    return ran.output
