"""A real server in a process of its own, and what the system says about that process's memory."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from rag.core.errors import DataError, ResourceError

__all__ = ["ServerProcess", "memory_of", "post_json"]

_LISTENING = "listening on "


class ServerProcess:
    """`rag serve` as a subprocess on a free port; ready when the `with` block begins, stopped when it ends.

    Args:
        index_dir: index to serve.
        arguments: further arguments of `rag serve`.
        settings: RAG_SERVE_… settings by their name in lower case, for example `batch_max_size`.
        start_timeout_s: longest wait for readiness.

    Raises:
        ResourceError: the server ended or was not ready in time; the message has the end of its log.
    """

    def __init__(
        self,
        index_dir: str | Path,
        *,
        arguments: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        self._command = [
            *(sys.executable, "-m", "rag.cli.main", "serve"),
            *("--index", str(index_dir), "--port", "0"),
            *arguments,
        ]
        given = {f"RAG_SERVE_{name.upper()}": str(value) for name, value in (settings or {}).items()}
        self._environment = {**os.environ, "RAG_SERVE_LOG_LEVEL": "warning", **given}
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[str] | None = None
        self.host, self.port = "127.0.0.1", 0
        self.ready_after_s = 0.0

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        started = time.monotonic()
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        try:
            self._read_address(started + self._start_timeout_s)
            self._wait_ready(started + self._start_timeout_s)
        except BaseException:
            self._stop()
            raise
        self.ready_after_s = time.monotonic() - started
        return self

    def _read_address(self, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        stdout, found = self._process.stdout, threading.Event()

        def read() -> None:
            for line in stdout:  # goes on reading, so that the pipe never fills up
                if line.startswith(_LISTENING):
                    address = urlsplit(line[len(_LISTENING) :].strip())
                    self.host, self.port = address.hostname or "127.0.0.1", address.port or 0
                    found.set()

        threading.Thread(target=read, daemon=True).start()
        while not found.wait(0.05):
            self._check_alive(deadline)

    def _wait_ready(self, deadline: float) -> None:
        while True:
            self._check_alive(deadline)
            try:
                connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.1)

    def _check_alive(self, deadline: float) -> None:
        assert self._process is not None
        if self._process.poll() is None and time.monotonic() < deadline:
            return
        self._log.seek(0)
        tail = self._log.read()[-1500:].strip()
        state = (
            "is not ready" if self._process.poll() is None else f"ended with code {self._process.returncode}"
        )
        raise ResourceError(f"the server {state}; the end of its log: {tail or 'empty'}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def post_json(connection: http.client.HTTPConnection, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Send JSON over a kept connection and read the JSON that comes back.

    Raises:
        DataError: the server answered with another status than 200.
    """
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise DataError(
            f"POST {path} was answered with {response.status}: {content[:300].decode(errors='replace')}"
        )
    return json.loads(content)


def memory_of(pid: int | str = "self") -> dict[str, int]:
    """Resident memory of a process in bytes, from `/proc/PID/smaps_rollup`.

    Returns:
        rss (all resident pages), anonymous (its own data), file_backed (mapped files and libraries,
        shared with the page cache), private (pages no other process has), pss.

    Raises:
        ResourceError: the system does not tell (only Linux does).
    """
    path = Path(f"/proc/{pid}/smaps_rollup")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be read ({error})", hint="memory is measured on Linux only"
        ) from error
    values: dict[str, int] = {}
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    rss, anonymous = values.get("Rss", 0), values.get("Anonymous", 0)
    return {
        "rss": rss,
        "anonymous": anonymous,
        "file_backed": rss - anonymous,
        "private": values.get("Private_Clean", 0) + values.get("Private_Dirty", 0),
        "pss": values.get("Pss", 0),
    }
