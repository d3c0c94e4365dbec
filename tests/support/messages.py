"""Expects errors, and compares their messages with messages.json.

A test states the class of an error and the argument at fault; the words stand in messages.json, for all
tests. After messages were reworded,

    python -m pytest --rewrite-messages tests/contracts TESTS

runs the tests and writes the messages that they met: the difference of messages.json is what there is to
review. Words that only some tests met may be found there, and with them the names of those tests.
"""

import difflib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

OPTION = "--rewrite-messages"
FILE = Path(__file__).with_name("messages.json")
TESTS = FILE.parents[1]

ErrorT = TypeVar("ErrorT", bound=Exception)
# The messages of every test, by its node id and in the order in which it meets them.
Messages = dict[str, list[str]]

_TEMPORARY = re.escape(os.path.realpath(tempfile.gettempdir()))
# What differs between two runs, and what stands for it.
_VARYING = {
    rf"{_TEMPORARY}/(pytest-of-[^/]+/pytest-\d+/)?(popen-gw\d+/)?[\w.-]+": "TMP",
    r"(?<=127\.0\.0\.1:)\d+": "PORT",
    r"\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(?=…)|(?<=/data-)[0-9a-f]{12}\b": "SHA256",
    r"(?<=errors\.pydantic\.dev/)[\d.]+": "VERSION",
}

# Several processes may run the tests, and write what they meet.
_LOCK = FileLock(Path(tempfile.gettempdir()) / f"{FILE.name}.lock")

# The messages that the running test has met.
_met: list[str] = []
# The node ids of the tests in every module and class that this run has collected.
_collected: dict[str, set[str]] = {}


@contextmanager
def refusal(
    error: type[ErrorT], argument: str | None = None
) -> Iterator[pytest.ExceptionInfo[ErrorT]]:
    """Expect an error of this class or of a subclass, which names this argument.

    What a test of Hypothesis meets differs from run to run; there `pytest.raises` expects it.
    """
    with pytest.raises(error) as caught:
        yield caught
    raised = caught.value
    if argument is not None:
        assert argument in raised.arguments
    _met.append(_text(raised))


def _text(error: Exception) -> str:
    """Class, message and hint of an error, without what differs between two runs."""
    message = getattr(error, "message", str(error))
    hint = getattr(error, "hint", "")
    text = f"{type(error).__name__}: {message}"
    if hint:
        text += f"\n  → {hint}"
    for pattern, name in _VARYING.items():
        text = re.sub(pattern, name, text)
    return text


@cache
def recorded() -> Messages:
    """What messages.json holds."""
    with _LOCK:
        return _read()


def begin() -> None:
    """Forget what the test before has met."""
    _met.clear()


def compare(test: str, *, rewrites: bool) -> None:
    """Compare what a test met with what is recorded of it, or record it."""
    expected = recorded().get(test, [])
    if _met == expected:
        return
    if rewrites:
        record({test: list(_met)})
        return
    difference = difflib.unified_diff(
        _lines(expected), _lines(_met), "recorded", "met", lineterm=""
    )
    shown = "\n".join(difference)
    path = test.partition("::")[0]
    pytest.fail(
        f"other messages than in {FILE.name}; where they are right: pytest {OPTION} {path}\n{shown}",
        pytrace=False,
    )


def _lines(messages: list[str]) -> list[str]:
    return "\n".join(messages).splitlines()


def record(changes: Messages) -> None:
    """Write the messages of some tests; a test without messages leaves the file."""
    with _LOCK:
        messages = _read() | changes
        kept = {test: met for test, met in messages.items() if met}
        text = json.dumps(kept, ensure_ascii=False, indent=1, sort_keys=True)
        FILE.write_text(f"{text}\n", encoding="utf-8")


def _read() -> Messages:
    messages: Messages = json.loads(FILE.read_text(encoding="utf-8"))
    return messages


def note_collected(collector: str, tests: set[str]) -> None:
    """Remember which tests a module or class has."""
    _collected.setdefault(collector, set()).update(tests)


def without_test() -> list[str]:
    """Recorded tests that do not exist: their file is gone, or this run collected it without them."""
    return [test for test in recorded() if not _exists(test)]


def _exists(test: str) -> bool:
    path = test.partition("::")[0]
    if not (TESTS.parent / path).exists():
        return False
    function = test.partition("[")[0]
    collector = function.rpartition("::")[0]
    return collector not in _collected or test in _collected[collector]
