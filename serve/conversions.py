"""Convert uploaded files, each upload in a process of its own, a few at a time in the whole server."""

import asyncio
import fcntl
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from rag.core.errors import MissingDependencyError
from rag.data.documents.limits import Limits
from rag.data.documents.read import CONVERTER, converter_environment, document_of, request_line, result_of
from rag.data.records import BadRecord, Document
from serve.errors import ApiError, invalid_request

_LIMITS = Limits(memory_mib=1024, timeout_s=30.0)  # of one file
_UPLOAD_S = 120.0  # all files of one upload
_SLOT_WAIT_S, _POLL_S = 10.0, 0.05
_MOST_OF_KEY, _MOST = 4, 16  # uploads that wait or are converted, in this process
_NICENESS = 10  # questions go first
_LONGEST_REPLY = 1 << 28


class Conversions:
    """Converts uploads; reads of passages and questions share no thread with them.

    Args:
        folder: holds a lock file per slot, which all workers of the server share, and files being converted.
        slots: uploads converted at a time.
    """

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder, self.slots = folder, slots
        self._uploads = Counter[str]()

    @property
    def uploads(self) -> int:
        """Uploads of this process that wait or are converted."""
        return self._uploads.total()

    async def convert(self, key: str, files: Sequence[tuple[str, bytes]]) -> list[Document]:
        """The documents of files, given by name and content; cancelling this call ends their conversion.

        Raises:
            ApiError: 422: a file cannot be read, or has no usable name; 501: the server lacks the package for
                its format; 503: too many uploads, of this key or of all.
        """
        for name, _ in files:
            is_short = len(name.encode("utf-8", "replace")) <= 255
            if name in ("", ".", "..") or not name.isprintable() or not is_short:
                hint = 'give the form field a file name such as filename="guide.pdf"'
                raise invalid_request(f"{name[:100]!r} cannot be the name of a file", hint)
        if self._uploads[key] >= _MOST_OF_KEY or self.uploads >= _MOST:
            raise _busy()
        self._uploads[key] += 1
        try:
            async with self._slot() as lock:
                with tempfile.TemporaryDirectory(prefix="upload-", dir=self.folder) as folder:
                    return await _convert(files, Path(folder), lock)
        finally:
            self._uploads[key] -= 1

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[IO[bytes]]:
        """Hold the lock of a slot, which the converting process inherits and so frees when it ends."""
        deadline = time.monotonic() + _SLOT_WAIT_S
        while True:
            for number in range(self.slots):
                with (self.folder / f"slot-{number}").open("ab") as lock:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield lock
                    return
            if time.monotonic() > deadline:
                raise _busy()
            await asyncio.sleep(_POLL_S)


async def _convert(files: Sequence[tuple[str, bytes]], folder: Path, lock: IO[bytes]) -> list[Document]:
    process = await asyncio.create_subprocess_exec(
        *CONVERTER,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env=converter_environment(),
        pass_fds=(lock.fileno(),), limit=_LONGEST_REPLY,
    )  # fmt: skip
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        ends, documents = time.monotonic() + _UPLOAD_S, []
        for number, (name, content) in enumerate(files):
            path = folder / str(number) / name
            path.parent.mkdir()
            await asyncio.to_thread(path.write_bytes, content)
            left_s = max(0.1, min(_LIMITS.timeout_s, ends - time.monotonic()))
            reply = await _reply(process, path, replace(_LIMITS, timeout_s=left_s))
            item = await asyncio.to_thread(_document, name, reply)
            if isinstance(item, BadRecord):
                raise ApiError(422, "unreadable_file", f"{name}: {item.reason} ({item.detail})")
            documents.append(item)
        return documents
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _reply(process: asyncio.subprocess.Process, path: Path, limits: Limits) -> bytes:
    """The line that the process writes about a file; empty if it ended or took too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request_line(str(path), replace(limits, timeout_s=limits.timeout_s + 1)))
        await process.stdin.drain()
        async with asyncio.timeout(limits.timeout_s):
            return await process.stdout.readline()
    except (ConnectionError, ValueError):  # it ended, or wrote more than a line may hold
        return b""
    except TimeoutError:
        detail = f"over {limits.timeout_s:.0f} s"
        return json.dumps({"reason": "takes too long", "remedy": "split it", "detail": detail}).encode()


def _document(name: str, line: bytes) -> Document | BadRecord:
    try:
        return document_of(
            name, result_of(line or b'{"reason": "broken file", "remedy": "save it again"}', name)
        )
    except MissingDependencyError as error:
        raise ApiError(501, "missing_package", "the server lacks a package", hint=error.hint) from error


def _busy() -> ApiError:
    message, hint = "too many files are being converted", "try again after the time in Retry-After"
    return ApiError(503, "overloaded", message, hint=hint, headers={"Retry-After": "10"})
