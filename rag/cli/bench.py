"""`rag bench`: measure this system on this machine, one subcommand per table."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from rag import bench
from rag.cli.main import add_commands
from rag.cli.options import documented, options_from, with_options

Figures = Annotated[Path | None, Parameter(help="Also write the figures here.")]
_BENCHMARKS = {
    "encode": "Passages encoded per second beside sentence-transformers.",
    "search": "Index types against exact search and against FAISS alone.",
    "codes": "Part numbers, names and codes found by hybrid search, BM25 and dense search.",
    "languages": "BM25 by the words of a language and by English ones, and a multilingual encoder.",
    "serve": "Questions answered over HTTP by a server.",
    "rights": "People who may read a part of an index beside one who may read everything.",
    "read": "Questions read per second, and what lower precision and effort change.",
    "promise": "How often a promised error rate holds on untouched questions.",
}


def make_app(words: Sequence[str]) -> App:
    """The group with all benchmarks, of which the one that the words call is imported."""
    app = App(name="bench", help="Measure this system on this machine, one subcommand per table.")
    summaries = {name: ("Benchmarks", about) for name, about in _BENCHMARKS.items()}
    add_commands(app, summaries, _command, words)
    return app


def _command(name: str) -> Callable[..., None]:
    """A command that runs a benchmark and prints its report."""
    benchmark = getattr(import_module(f"rag.bench.{name}"), f"run_{name}_benchmark")
    signature = inspect.signature(benchmark)

    @with_options(options_from(benchmark, documented(bench)))
    def command(*, json: Figures = None, **settings: object) -> None:
        from rag.core.log import setup_logging
        from rag.runtime.hardware import use_threads

        setup_logging("WARNING")
        use_threads()
        given = signature.bind(**settings)
        given.apply_defaults()
        report = benchmark(**settings)
        if json is not None:
            report.write(json, name, given.arguments)
        print(report.to_text(name, given.arguments))

    command.__doc__ = inspect.getdoc(benchmark)
    return command
