"""Files as documents of a corpus, converted in processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import PurePath
from urllib.parse import quote

from rag.core.errors import MissingDependencyError
from rag.core.progress import Progress
from rag.core.unicode import as_unicode
from rag.data.documents.blocks import Converted, Unreadable
from rag.data.documents.limits import Limits
from rag.data.files.rows import strip_compression
from rag.data.records import BadRecord, Document

CONVERTER = (sys.executable, "-m", "rag.data.documents.convert")
_LOOK_AHEAD = 8  # documents of each process that may be finished before they are yielded
_UNWRITABLE = re.compile("[\\s%\x00-\x1f\x7f\ud800-\udfff]")


def file_id(name: str) -> str:
    """A file's name as an id: without white space, so that TREC's formats can hold it.

    White space, control characters and "%" are percent-encoded, as in URLs; two names never share an id.

    Example:
        >>> file_id("My notes/Größe 100%.pdf")
        'My%20notes/Größe%20100%25.pdf'
    """
    return _UNWRITABLE.sub(lambda match: quote(match[0], errors="surrogateescape"), name)


def document_of(name: str, file: Converted | Unreadable) -> Document | BadRecord:
    """The document of a file of this name, or the reason why it cannot be read."""
    if isinstance(file, Unreadable):
        return BadRecord(file.reason, "; ".join(filter(None, (file.detail, file.remedy))))
    shown = as_unicode(name)
    title = file.title or PurePath(strip_compression(shown)).stem
    return Document(file_id(name), title, file.text, blocks=file.blocks, pages=file.pages, path=shown)


def converter_environment() -> dict[str, str]:
    """The environment of a converting process: it imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def request_line(path: str, limits: Limits, encoding: str = "utf-8") -> bytes:
    """What a converting process reads: the file to convert and its limits."""
    return json.dumps({"path": path, "limits": asdict(limits), "encoding": encoding}).encode() + b"\n"


def result_of(line: bytes, path: str) -> Converted | Unreadable:
    """What a converting process wrote about the file `path`.

    Raises:
        MissingDependencyError: a converter needs a package that is not installed.
    """
    reply = json.loads(line)
    if "missing" in reply:
        raise MissingDependencyError(f"{path}: {reply['missing']}", hint=reply["hint"])
    return Unreadable(**reply) if "reason" in reply else Converted.from_json(reply)


def convert_files(
    paths: Sequence[str], limits: Limits, *, encoding: str = "utf-8", processes: int | None = None
) -> Iterator[Converted | Unreadable]:
    """Convert files, in the order given; for a file that cannot be read, the result is the reason.

    Args:
        processes: number of documents at a time; default: one per core, eight at most.

    Raises:
        MissingDependencyError: a converter needs a package that is not installed.
    """
    n_processes = processes or min(os.cpu_count() or 1, 8)
    workers = [_Worker(limits, encoding) for _ in range(n_processes)]
    idle, rest = deque(workers), iter(paths)

    def run(path: str) -> Converted | Unreadable:
        worker = idle.popleft()  # there are as many as threads
        try:
            return worker.convert(path)
        finally:
            idle.append(worker)

    executor = ThreadPoolExecutor(n_processes, thread_name_prefix="documents")
    try:
        with Progress(len(paths), "files", "read") as progress:
            waiting = deque(executor.submit(run, path) for path in islice(rest, _LOOK_AHEAD * n_processes))
            while waiting:
                yield waiting.popleft().result()
                progress.update()
                waiting.extend(executor.submit(run, path) for path in islice(rest, 1))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()


class _Worker:
    """A converting process, started when it is first needed and after each one that ended."""

    def __init__(self, limits: Limits, encoding: str) -> None:
        self._limits, self._encoding = limits, encoding
        self._process: subprocess.Popen[bytes] | None = None

    def convert(self, path: str) -> Converted | Unreadable:
        """Send one request and wait for its reply; see `convert_files`."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                CONVERTER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=converter_environment(),
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request_line(os.path.abspath(path), self._limits, self._encoding))
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            return result_of(line, path)
        if (code := process.wait()) == -signal.SIGALRM:
            remedy = "split it, or give it more time (--document-timeout)"
            return Unreadable("takes too long", remedy, f"more than {self._limits.timeout_s:g} s")
        return Unreadable("broken file", "open and save it again", f"its converter ended with code {code}")

    def close(self) -> None:
        """End the process for good."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
