"""Processes that tests start, and waiting for what they do."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def with_packages() -> dict[str, str]:
    """The environment of a process that imports from where this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_python(code: str, **options: Any) -> str:
    """Run a program in a process of its own, which has to succeed, and return what it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(fact: Callable[[], object], *, limit_s: float = 300.0) -> None:
    """Returns when `fact()` is true.

    Raises:
        TimeoutError: it did not come to be.
    """
    deadline = time.monotonic() + limit_s
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s in vain")
        time.sleep(0.02)
