"""Logging: one line per message for people, one JSON object per line for machines."""

import json
import logging
import sys
import time
from functools import partial
from typing import Any

from tqdm import tqdm

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    *("message", "asctime"),
    "color_message",  # uvicorn's message again, for terminals
}


def get_logger(name: str) -> logging.Logger:
    """A standard library logger; libraries log, only programs call `setup_logging`."""
    return logging.getLogger(name)


class _BesideBars(logging.StreamHandler[Any]):
    """Writes lines above a progress bar, where there is one, and not into it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line; values passed as `extra=` become fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({key: value for key, value in record.__dict__.items() if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


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


def setup_logging(level: str = "INFO", *, json_lines: bool = False) -> None:
    """Send log records of this process to stderr, replacing earlier handlers.

    A command warns once in the same words; a server, whose lines are JSON, each time.
    """
    handler = _BesideBars(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    if json_lines:
        handler.setFormatter(JsonFormatter())
    else:
        handler.addFilter(partial(_is_new, set()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("faiss", "httpx"):  # which build was loaded, every request: users do not need that
        logging.getLogger(chatty).setLevel(logging.WARNING)
