"""What a program says while it works: log lines, progress with rate and time left, times by stage."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from tqdm import tqdm
from tqdm.contrib import DummyTqdmFile

_INTERVAL_S = 10.0  # between the lines of progress in a log


def get_logger(name: str) -> logging.Logger:
    """A standard library logger; libraries log, only programs call `setup_logging`."""
    return logging.getLogger(name)


def _is_new(shown: set[str], record: logging.LogRecord) -> bool:
    """Whether a record is no warning that came before, word for word, as those of a file read twice."""
    if record.levelno != logging.WARNING:
        return True
    before = len(shown)
    shown.add(record.getMessage())
    return len(shown) > before


def setup_logging(level: str = "INFO", *, json_lines: bool = False) -> None:
    """Send log records of this process to stderr, replacing earlier handlers.

    A command warns once in the same words; a server, whose lines are JSON, each time. Values of `extra=` are
    fields of JSON.
    """
    handler = logging.StreamHandler(DummyTqdmFile(sys.stderr))  # lines stand above a bar of progress
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    if json_lines:
        handler.setFormatter(
            JsonFormatter(
                "{levelname}{name}{message}",
                style="{",
                timestamp="time",
                rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
                reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's message again, for terminals
                json_ensure_ascii=False,
            )
        )
    else:
        handler.addFilter(partial(_is_new, set()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("faiss", "httpx"):  # which build was loaded, every request: users do not need that
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Progress(tqdm):  # type: ignore[misc]  # tqdm has no types
    """Progress of a long job: a bar on a terminal, else a line now and then; none among lines of JSON.

    Args:
        total: number of units, or None if unknown.
        unit: what is counted, plural ("passages").
        label: what is being done ("encode").
        initial: units finished by an earlier run.
    """

    def __init__(self, total: int | None, unit: str, label: str, *, initial: int = 0) -> None:
        shown: dict[str, Any] = {"file": sys.stderr, "smoothing": 0.05, "dynamic_ncols": True}
        if not sys.stderr.isatty():
            shown = {"file": _Lines(), "mininterval": _INTERVAL_S, "delay": _INTERVAL_S, "miniters": 1}
            shown |= {"ncols": 0, "position": 0}
        shown["disable"] = any(isinstance(it.formatter, JsonFormatter) for it in logging.getLogger().handlers)
        super().__init__(total=total, unit=f" {unit}", desc=label, initial=initial, **shown)


class _Lines:
    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(line + "\n")


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
            elapsed_ms = (time.perf_counter() - started) * 1000.0
            timer[name] = timer.get(name, 0.0) + elapsed_ms
