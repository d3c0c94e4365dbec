"""A real server in a separate process, and what is asked of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from rag.core.errors import DataError, ResourceError

_ADDRESS = re.compile(r"^listening on \w+://([\w.-]+):(\d+)", re.MULTILINE)
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_LOG_TAIL = 1500  # characters of the log in an error


class ServerProcess:
    """`rag serve` as a subprocess; ready when the `with` block begins, stopped when it ends.

    Args:
        index_dir: the index; None where the arguments name shelves.
        arguments: further arguments of `rag serve`.
        port: to listen on; 0 is a free one.
        settings: RAG_SERVE_… settings by their name in lower case, for example `batch_max_size`.

    Attributes:
        process, host, port: known from the beginning of the `with` block on.

    Raises:
        ResourceError: the server ended or was not ready in time; the message has the end of its
            log.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        index_dir: str | Path | None,
        *,
        arguments: Sequence[str] = (),
        port: int = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        serve = (sys.executable, "-P", "-m", "rag.cli.main", "serve")
        served = [] if index_dir is None else ["--index", str(index_dir)]
        self._command = [*serve, *served, "--port", str(port), *arguments]
        self._environment = dict(os.environ)
        for name, value in (settings or {}).items():
            self._environment[f"RAG_SERVE_{name.upper()}"] = str(value)
        self.host = "127.0.0.1"
        self.port = 0

    def __enter__(self) -> ServerProcess:
        self._folder = tempfile.TemporaryDirectory(prefix="rag-server-")
        output = Path(self._folder.name) / "output"
        log = Path(self._folder.name) / "log"
        with output.open("wb") as stdout, log.open("wb") as stderr:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=stdout, stderr=stderr
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        try:
            while not self._is_ready(output):
                code = self.process.poll()
                if code is not None or time.monotonic() > deadline:
                    state = "is not ready" if code is None else f"ended with code {code}"
                    tail = log.read_text("utf-8", errors="replace")[-_LOG_TAIL:].strip()
                    raise ResourceError(
                        f"the server {state}; the end of its log: {tail or 'empty'}"
                    )
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_ready(self, output: Path) -> bool:
        address = _ADDRESS.search(output.read_text("utf-8", errors="replace"))
        if address is None:
            return False
        self.host = address[1]
        self.port = int(address[2])
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        with closing(connection):
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            except OSError:
                return False

    def __exit__(self, *raised: object) -> None:
        with self._folder, self.process:
            self.process.terminate()
            try:
                self.process.wait(timeout=_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()


def post_json(
    connection: http.client.HTTPConnection, path: str, body: Mapping[str, object]
) -> dict[str, object]:
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
