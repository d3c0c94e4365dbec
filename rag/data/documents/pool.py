"""Convert many documents at once, each in a separate process that is killed at its time limit."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import asdict

from rag.core.errors import MissingDependencyError, ResourceError
from rag.core.log import get_logger
from rag.data.documents.blocks import Converted, Unreadable
from rag.data.documents.limits import Limits

_LOOK_AHEAD = 8  # documents of each process that may be finished before they are yielded
_SLOW_S = 10.0  # from then on the file that takes long is named
_log = get_logger(__name__)


def convert_files(
    paths: Iterable[str], limits: Limits, *, encoding: str = "utf-8", processes: int | None = None
) -> Iterator[Converted | Unreadable]:
    """Convert files, in the order given; for a file that cannot be read, the result is the reason.

    Args:
        processes: number of documents at a time; default: one per core, eight at most.

    Raises:
        MissingDependencyError: a converter needs a package that is not installed.
    """
    n_processes = processes or min(os.cpu_count() or 1, 8)
    workers = [_Worker(limits, encoding) for _ in range(n_processes)]
    idle = deque(workers)
    waiting: deque[tuple[str, Future[Converted | Unreadable]]] = deque()

    def run(path: str) -> Converted | Unreadable:
        worker = idle.popleft()  # there are as many as threads
        try:
            return worker.convert(path)
        finally:
            idle.append(worker)

    executor = ThreadPoolExecutor(n_processes, thread_name_prefix="documents")
    try:
        for path in paths:
            waiting.append((path, executor.submit(run, path)))
            if len(waiting) >= _LOOK_AHEAD * n_processes:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()


def _result(path: str, future: Future[Converted | Unreadable]) -> Converted | Unreadable:
    started = time.monotonic()
    while True:
        try:
            return future.result(timeout=_SLOW_S)
        except NotYet:
            _log.warning("still reading %s (%.0f s)", path, time.monotonic() - started)


class _Worker:
    """A converting process, started when it is first needed and after each one that was killed."""

    def __init__(self, limits: Limits, encoding: str) -> None:
        self._limits, self._request = limits, {"limits": asdict(limits), "encoding": encoding}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def convert(self, path: str) -> Converted | Unreadable:
        """Send one request and wait for its reply; see `convert_files`."""
        process = self._running()
        if process is None:
            return Unreadable("stopped", "run the command again")
        timeout_s, started = self._limits.timeout_s, time.monotonic()
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({**self._request, "path": os.path.abspath(path)}).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            reply = json.loads(line)
            if "missing" in reply:
                raise MissingDependencyError(f"{path}: {reply['missing']}", hint=reply["hint"])
            return Unreadable(**reply) if "reason" in reply else Converted.from_json(reply)
        process.kill()
        code = process.wait()
        if time.monotonic() - started >= timeout_s:
            remedy = "split it, or give it more time (--document-timeout)"
            return Unreadable("takes too long", remedy, f"more than {timeout_s:g} s")
        return Unreadable("broken file", "open and save it again", f"its converter ended with code {code}")

    def _running(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_closed:
                return None
            if self._process is None or self._process.poll() is not None:
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "rag.data.documents.worker"], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                    )  # fmt: skip
                except OSError as error:
                    raise ResourceError(
                        f"documents are converted in processes of their own, and {sys.executable} cannot be "
                        f"started: {error.strerror}"
                    ) from error
            return self._process

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()
