"""`rag bench`: measure this system on this machine, one subcommand per table."""

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from rag import bench
from rag.cli.lazy import check_name, command_with, group_of
from rag.cli.options import documented, make_option, options_from

_BENCHMARKS = {
    "encode": "Passages encoded per second beside sentence-transformers.",
    "search": "Index types against exact search and against FAISS alone.",
    "codes": "Part numbers, names and codes found by hybrid search, BM25 and dense search.",
    "serve": "Questions answered over HTTP by a server.",
    "read": "Questions read per second, and what lower precision and effort change.",
}


def _load(name: str) -> Any:
    """A command from a benchmark, whose report it prints."""
    check_name(name, _BENCHMARKS)
    function = getattr(import_module(f"rag.bench.{name}"), f"run_{name}_benchmark")
    options = options_from(function, documented(bench))
    options["json"] = make_option("json", Path | None, None, "Also write the figures here.")

    def measure(json: Path | None, **values: Any) -> None:
        from rag.core.log import setup_logging
        from rag.runtime.hardware import use_threads

        setup_logging("WARNING")
        use_threads()
        report = function(**values)
        if json is not None:
            report.write(json)
        print(report.to_text())

    return command_with(name, options, measure, help=inspect.getdoc(function) or "")


app = group_of(
    "Measure this system on this machine, one subcommand per table.",
    {name: ("Benchmarks", about) for name, about in _BENCHMARKS.items()},
    _load,
)
