"""Files as documents of a corpus, converted in separate processes."""

import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import PurePath
from subprocess import DEVNULL, PIPE, Popen
from typing import Any
from urllib.parse import quote

from rag.core.errors import MissingDependencyError
from rag.core.log import Progress
from rag.core.types import as_unicode
from rag.data.formats import strip_compression
from rag.data.metadata import metadata_of_fields
from rag.data.records import BadRecord, Block, Document

# -P: no module is taken from the folder of work, which is often that of the documents.
CONVERTER = (sys.executable, "-P", "-m", "rag.data.documents.convert")
_MAX_PROCESSES = 8
# Documents of each process that may be finished before they are yielded.
_LOOK_AHEAD = 8
_UNWRITABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def file_id(name: str) -> str:
    """A file's name as an id: as people write it.

    Only what no text or address can hold is percent-encoded: control characters, and bytes of a
    name that are no UTF-8.

    Example:
        >>> file_id("My notes/Größe 100%.pdf"), file_id("line\\nbreak.md")
        ('My notes/Größe 100%.pdf', 'line%0Abreak.md')
    """
    return _UNWRITABLE.sub(lambda match: quote(match[0], errors="surrogateescape"), name)


def document_from(line: bytes, name: str) -> Document | BadRecord:
    """What a converting process wrote about a file of this name.

    Returns:
        The document, or why the file cannot be read.

    Raises:
        MissingDependencyError: a converter needs a package that is not installed.
    """
    reply: dict[str, Any] = json.loads(line)
    if "missing" in reply:
        raise MissingDependencyError(f"{name}: {reply['missing']}", hint=reply["hint"])
    if "reason" in reply:
        return BadRecord(**reply)
    path = as_unicode(name)
    return Document(
        id=file_id(name),
        title=reply["title"] or PurePath(strip_compression(path)).stem,
        text=reply["text"],
        blocks=tuple(Block(*block) for block in reply["blocks"]),
        pages=tuple((start, label) for start, label in reply["pages"]),
        scanned=tuple(reply["scanned"]),
        path=path,
        metadata=metadata_of_fields(dict(reply["metadata"])),
        notes=tuple(reply["notes"]),
    )


def convert_files(
    files: Sequence[tuple[str, str]], *, timeout_s: float = 60.0
) -> Iterator[Document | BadRecord]:
    """Convert files, given by path and name, in order; a file that cannot be read is a bad
    record.
    """
    n_processes = min(os.cpu_count() or 1, _MAX_PROCESSES)
    converters = [Converter() for _ in range(n_processes)]
    # There is a converter for each thread.
    idle = deque(converters)

    def convert(file: tuple[str, str]) -> Document | BadRecord:
        converter = idle.popleft()
        try:
            return converter.convert(*file, timeout_s)
        finally:
            idle.append(converter)

    remaining = iter(files)
    executor = ThreadPoolExecutor(n_processes, thread_name_prefix="documents")
    try:
        with Progress(len(files), "files", "read") as progress:
            first = islice(remaining, _LOOK_AHEAD * n_processes)
            waiting = deque(executor.submit(convert, file) for file in first)
            while waiting:
                yield waiting.popleft().result()
                progress.update()
                for file in islice(remaining, 1):
                    waiting.append(executor.submit(convert, file))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for converter in converters:
            converter.close()


class Converter:
    """A converting process, started when it is first needed and again after it ended."""

    def __init__(self, niceness: int = 0) -> None:
        self._niceness = niceness
        self._process: Popen[bytes] | None = None

    def convert(
        self, path: str, name: str, timeout_s: float, memory_mib: int = 4096
    ) -> Document | BadRecord:
        """Send one request and wait for its reply; see `convert_files`."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"path": os.path.abspath(path), "timeout_s": timeout_s, "memory_mib": memory_mib}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            return document_from(line, name)
        code = process.wait()
        if code == -signal.SIGALRM:
            remedy = "split it, or give it more time (document_timeout)"
            return BadRecord("takes too long", f"more than {timeout_s:g} s; {remedy}")
        detail = f"its converter ended with code {code}; open and save it again"
        return BadRecord("broken file", detail)

    def _start(self) -> Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        process = Popen(CONVERTER, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment)
        if self._niceness:
            os.setpriority(os.PRIO_PROCESS, process.pid, self._niceness)
        return process

    def close(self) -> None:
        """End the process for good."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
