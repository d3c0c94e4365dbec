"""Shared by the readers and writers of records: JSON and text files, scores."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.data.files.rows import json_lines, open_binary, read_lines
from rag.data.records import BadRecord


def json_records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) for every object of a file of JSON lines.

    Raises:
        DataError: malformed; names the place.
    """
    with open_binary(path) as stream:
        for number, value in json_lines(stream):
            if not isinstance(good(value, f"{path}:{number}"), dict):
                raise DataError(f"{path}:{number}: expected an object, found {type(value).__name__}")
            yield f"{path}:{number}", value


def good(value: Any, place: str) -> Any:
    """The value, unless it is a bad record.

    Raises:
        DataError: it is.
    """
    if isinstance(value, BadRecord):
        raise DataError(f"{place}: {value.reason} ({value.detail})")
    return value


def text_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """(place, line) of a text file, without line ends; empty lines are left out."""
    with open_binary(path) as stream:
        for number, line in read_lines(stream):
            if good(line, f"{path}:{number}"):
                yield f"{path}:{number}", str(line)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Write a text file atomically."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        yield file


def write_json_list(path: Path, items: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON list, one element per line; returns the number of elements."""
    count = 0
    with open_text(path) as file:
        for count, item in enumerate(items, start=1):
            file.write((",\n" if count > 1 else "[\n") + _dumps(item))
        file.write("\n]\n" if count else "[]\n")
    return count


def write_json_lines(path: Path, items: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines: one object per line."""
    with open_text(path) as file:
        for item in items:
            file.write(_dumps(item) + "\n")


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def finite(value: Any, place: str) -> float:
    """A finite score from a number or a string of one.

    Raises:
        DataError: it is neither.
    """
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{place}: score {value!r} is not a finite number")
    return score
