"""A real server in a separate process, and what is asked of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rag.core.errors import DataError, ResourceError

_LISTENING, _START_TIMEOUT_S = "listening on ", 300.0


class ServerProcess:
    """`rag serve` as a subprocess; ready when the `with` block begins, stopped when it ends.

    Args:
        arguments: further arguments of `rag serve`.
        port: to listen on; 0 is a free one.
        settings: RAG_SERVE_… settings by their name in lower case, for example `batch_max_size`.

    Raises:
        ResourceError: the server ended or was not ready in time; the message has the end of its
            log.
    """

    process: subprocess.Popen[str]  # from `__enter__` on

    def __init__(
        self,
        index_dir: str | Path,
        *,
        arguments: Sequence[str] = (),
        port: int = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        serve = (sys.executable, "-m", "rag.cli.main", "serve")
        self._command = [*serve, "--index", str(index_dir), "--port", str(port), *arguments]
        variables = {
            f"RAG_SERVE_{name.upper()}": str(value) for name, value in (settings or {}).items()
        }
        self._environment = {**os.environ, **variables}
        self.host, self.port = "127.0.0.1", 0
        self.ready_after_s = 0.0

    def __enter__(self) -> ServerProcess:
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        started = time.monotonic()
        self.process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self._read_address(started + _START_TIMEOUT_S)
            self._wait_ready(started + _START_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        self.ready_after_s = time.monotonic() - started
        return self

    def _read_address(self, deadline: float) -> None:
        assert self.process.stdout is not None
        stdout, is_up = self.process.stdout, threading.Event()

        def read() -> None:
            for line in stdout:  # goes on reading, so that the pipe never fills up
                if line.startswith(_LISTENING):
                    address = urlsplit(line[len(_LISTENING) :].strip())
                    self.host, self.port = address.hostname or "127.0.0.1", address.port or 0
                    is_up.set()

        threading.Thread(target=read, daemon=True).start()
        while not is_up.wait(0.05):
            self._check_alive(deadline)

    def _wait_ready(self, deadline: float) -> None:
        while True:
            self._check_alive(deadline)
            connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.1)

    def _check_alive(self, deadline: float) -> None:
        if self.process.poll() is None and time.monotonic() < deadline:
            return
        code = self.process.poll()
        self._log.seek(0)
        tail = self._log.read()[-1500:].strip()
        state = "is not ready" if code is None else f"ended with code {code}"
        raise ResourceError(f"the server {state}; the end of its log: {tail or 'empty'}")

    def __exit__(self, *raised: object) -> None:
        with self._log, self.process:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()


def post_json(
    connection: http.client.HTTPConnection, path: str, body: Mapping[str, Any]
) -> dict[str, Any]:
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
