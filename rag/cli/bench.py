"""`rag bench`: measure this system on this machine, one subcommand per table."""

import inspect
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from rag import bench
from rag.cli.lazy import group_of
from rag.cli.options import command_of, documented

_BENCHMARKS = {
    "encode": "Passages encoded per second beside sentence-transformers.",
    "search": "Index types against exact search and against FAISS alone.",
    "serve": "Questions answered over HTTP by a server.",
    "read": "Questions read per second, and what lower precision and effort change.",
}


def _load(name: str) -> Any:
    """A command from a benchmark, whose report it prints."""
    function = getattr(import_module(f"rag.bench.{name}"), f"run_{name}_benchmark")

    @wraps(function)
    def measure(*, json: Path | None, **given: Any) -> None:
        from rag.core.log import setup_logging
        from rag.runtime.hardware import use_threads

        setup_logging("WARNING")
        use_threads()
        report = function(**given)
        if json is not None:
            report.write(json)
        typer.echo(report.to_text())

    signature = inspect.signature(function)
    parameter = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=None)
    measure.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), parameter]
    )
    measure.__annotations__ = {**function.__annotations__, "json": Path | None}
    return command_of(name, measure, documented(bench) | {"json": "Also write the figures here."})


app = group_of(
    "Measure this system on this machine, one subcommand per table.",
    {name: ("Benchmarks", about) for name, about in _BENCHMARKS.items()},
    _load,
)
