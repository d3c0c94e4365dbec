"""Logging: one line per message for people, one JSON object per line for machines."""

import logging
import sys
from functools import partial
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from tqdm import tqdm


def get_logger(name: str) -> logging.Logger:
    """A standard library logger; libraries log, only programs call `setup_logging`."""
    return logging.getLogger(name)


class _BesideBars(logging.StreamHandler[Any]):
    """Writes lines above a progress bar, where there is one, and not into it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


def _is_new(shown: set[str], record: logging.LogRecord) -> bool:
    """Whether a record is no warning that came before, word for word, as those of a file read twice."""
    if record.levelno != logging.WARNING:
        return True
    before = len(shown)
    shown.add(record.getMessage())
    return len(shown) > before


def logs_json() -> bool:
    """Whether the lines of this process's log are JSON objects, so that nothing else may stand among them."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def json_formatter() -> JsonFormatter:
    """One JSON object per record; values passed as `extra=` become fields."""
    return JsonFormatter(
        "{levelname}{name}{message}",
        style="{",
        timestamp="time",
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
        reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's message again, for terminals
        json_ensure_ascii=False,
    )


def setup_logging(level: str = "INFO", *, json_lines: bool = False) -> None:
    """Send log records of this process to stderr, replacing earlier handlers.

    A command warns once in the same words; a server, whose lines are JSON, each time.
    """
    handler = _BesideBars(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    if json_lines:
        handler.setFormatter(json_formatter())
    else:
        handler.addFilter(partial(_is_new, set()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("faiss", "httpx"):  # which build was loaded, every request: users do not need that
        logging.getLogger(chatty).setLevel(logging.WARNING)
