"""`rag bench`: measure this system on this machine, one subcommand per table."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from rag import bench
from rag.cli.options import command_with, documented, parameters_of, parse_numbers

_BENCHMARKS = ("encode", "search", "serve", "read")
_SHORT = {"index": "-i", "questions": "-q"}
_Json = Annotated[Path | None, typer.Option(help="Also write the figures here.")]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Measure this system on this machine, one subcommand per table.",
)


def _add(name: str) -> None:
    """A command from a benchmark: its parameters are the options, its docstring is the help."""
    function = getattr(import_module(f"rag.bench.{name}"), f"run_{name}_benchmark")
    about = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[0]
    helps = documented(bench) | documented(function)
    options = {
        each: _option(each, kind, default, helps[each])
        for each, (kind, default) in parameters_of(function).items()
    }

    def run(json: Path | None, **given: Any) -> None:
        from rag.core.log import setup_logging
        from rag.runtime.hardware import use_threads

        setup_logging("WARNING")
        use_threads()
        report = function(**given)
        if json is not None:
            report.write(json)
        typer.echo(report.to_text())

    app.command(name)(command_with({**options, "json": (_Json, None)}, run, like=function, help=about))


def _option(name: str, kind: Any, default: Any, help: str) -> tuple[Any, Any]:
    """Annotation and default of an option; a sequence is given with commas."""
    flag = f"--{name.replace('_', '-')}"
    flags = (flag, _SHORT[name]) if name in _SHORT else (flag,) if kind is not bool else ()
    parsers: dict[Any, Callable[[str], Any]] = {
        Sequence[int]: lambda text: parse_numbers(text, flag),
        Sequence[str]: lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
    }
    if kind not in parsers:
        return Annotated[kind, typer.Option(*flags, help=help)], default
    shown = ",".join(map(str, default))
    return Annotated[str, typer.Option(*flags, help=help, parser=parsers[kind])], shown


for _name in _BENCHMARKS:
    _add(_name)
