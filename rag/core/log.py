"""What a program says: log lines, progress with rate and time left, times by stage, tables."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from tqdm import tqdm

ItemT = TypeVar("ItemT")
# Between the lines of progress in a log.
_INTERVAL_S = 10.0


def get_logger(name: str) -> logging.Logger:
    """A standard library logger; libraries log, only programs call `setup_logging`."""
    return logging.getLogger(name)


def setup_logging(level: str = "INFO", *, json_lines: bool = False) -> None:
    """Send log records of this process to stderr, replacing earlier handlers.

    A command warns once in the same words; a server, whose lines are JSON (`extra=` gives fields),
    each time.
    """
    # It imports asyncio and bars of notebooks, which programs alone need.
    from tqdm.contrib import DummyTqdmFile

    # Lines stand above a bar of progress.
    handler = logging.StreamHandler(DummyTqdmFile(sys.stderr))
    formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    if json_lines:
        formatter = JsonFormatter(
            "%(levelname)s%(name)s%(message)s",
            json_ensure_ascii=False,
            timestamp="time",
            rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
            # The last is uvicorn's message again, for terminals.
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],
        )
    else:
        seen: set[str] = set()

        def is_new(record: logging.LogRecord) -> bool:
            if record.levelno != logging.WARNING:
                return True
            message = record.getMessage()
            is_repeated = message in seen
            seen.add(message)
            return not is_repeated

        handler.addFilter(is_new)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Users do not need to know which build was loaded, and of every request.
    for chatty in ("faiss", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Progress(tqdm):  # type: ignore[misc]  # tqdm has no types
    """Progress of a long job: a bar on a terminal, else a line now and then; none among lines of
    JSON.

    Args:
        total: number of units, or None if unknown.
        unit: what is counted, plural ("passages").
        label: what is being done ("encode").
        initial: units finished by an earlier run.
        silent: whether nothing is shown, as in all processes but one.
    """

    def __init__(
        self, total: int | None, unit: str, label: str, *, initial: int = 0, silent: bool = False
    ) -> None:
        bar_options: dict[str, Any] = {"file": sys.stderr, "smoothing": 0.05, "dynamic_ncols": True}
        if not sys.stderr.isatty():
            bar_options = {"file": _Lines(), "miniters": 1, "ncols": 0, "position": 0}
            bar_options |= dict.fromkeys(("mininterval", "delay"), _INTERVAL_S)
        handlers = logging.getLogger().handlers
        is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in handlers)
        bar_options["disable"] = silent or is_json
        super().__init__(total=total, unit=f" {unit}", desc=label, initial=initial, **bar_options)


def in_batches(
    items: Sequence[ItemT], size: int, unit: str, label: str
) -> Iterator[Sequence[ItemT]]:
    """At most `size` items at a time, in order, with progress; see `Progress`."""
    with Progress(len(items), unit, label) as progress:
        for start in range(0, len(items), size):
            batch = items[start : start + size]
            yield batch
            progress.update(len(batch))


class _Lines:
    def write(self, text: str) -> None:
        if text.strip():
            sys.stderr.write(text.strip() + "\n")


Timer = dict[str, float] | None
"""Wall milliseconds by stage; None where nobody asks for them."""


@contextmanager
def stage(timer: Timer, name: str) -> Iterator[None]:
    """Add the wall time of a `with` block to a stage.

    Example:
        >>> timer = {}
        >>> with stage(timer, "search"):
        ...     pass
        >>> list(timer)
        ['search']
    """
    started = time.perf_counter()
    try:
        yield
    finally:
        if timer is not None:
            timer[name] = timer.get(name, 0.0) + 1000.0 * (time.perf_counter() - started)


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: first column left-aligned, the others right-aligned.

    Example:
        >>> print("\\n".join(text_table(("search", "ms"), [("flat", "1.2"), ("bare", "1.19")])))
        search    ms
        flat     1.2
        bare    1.19
    """
    cells = [columns, *rows]
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    return [
        "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip() for row in cells
    ]
