"""Convert uploaded files, each upload in a process of its own, a few at a time in the whole server."""

import asyncio
import fcntl
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rag.core.errors import MissingDependencyError
from rag.data.documents.read import CONVERTER, converter_environment, document_from, request_line
from rag.data.records import BadRecord, Document
from serve.errors import ApiError, invalid_request

_MEMORY_MIB = 2048  # all conversions of the server together
_FILE_S, _UPLOAD_S = 30.0, 60.0  # one file; all files of one upload
_SLOT_WAIT_S, _POLL_S = 10.0, 0.05
_MOST_OF_KEY, _MOST = 4, 16  # uploads that wait or are converted, in this process
_NICENESS = 10  # questions go first
_LONGEST_REPLY = 1 << 28
_FAILED = b'{"reason": "broken, or takes too long", "detail": "save it again, or split it"}'


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Documents of an upload, why its other files cannot be read, and remarks about the conversion."""

    documents: list[Document] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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

    async def convert(self, key: str, files: Sequence[tuple[str, bytes]]) -> Uploaded:
        """The documents of files, given by name and content, and why the other files cannot be read.

        Cancelling this call ends the conversion.

        Raises:
            ApiError: 422: no file can be read, or one has no usable name; 501: the server lacks the package
                for a format; 503: too many uploads, of this key or of all.
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
                    uploaded = await _convert(files, Path(folder), lock, _MEMORY_MIB // self.slots)
            if not uploaded.documents:
                raise ApiError(422, "unreadable_file", "; ".join(uploaded.unreadable))
            return uploaded
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


async def _convert(
    files: Sequence[tuple[str, bytes]], folder: Path, lock: IO[bytes], memory_mib: int
) -> Uploaded:
    uploaded = Uploaded()
    ends = time.monotonic() + _UPLOAD_S
    converter: asyncio.subprocess.Process | None = None
    try:
        for number, (name, content) in enumerate(files):
            path = folder / str(number) / name
            path.parent.mkdir()
            await asyncio.to_thread(path.write_bytes, content)
            converter = converter or await _start(lock)
            left_s = max(0.1, min(_FILE_S, ends - time.monotonic()))
            reply = await _reply(converter, path, left_s, memory_mib)
            if reply is None:  # it died of this file, or still works on it: the next one needs another
                await _end(converter)
                converter = None
            item = await asyncio.to_thread(_document, name, reply or _FAILED)
            if isinstance(item, BadRecord):
                uploaded.unreadable.append(f"{name}: {item.reason} ({item.detail})")
            else:
                uploaded.documents.append(item)
                uploaded.notes.extend(f"{name}: {note}" for note in item.notes)
        return uploaded
    finally:
        if converter is not None:
            await _end(converter)


async def _start(lock: IO[bytes]) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *CONVERTER,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env=converter_environment(),
        pass_fds=(lock.fileno(),), limit=_LONGEST_REPLY,
    )  # fmt: skip
    os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
    return process


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _reply(
    process: asyncio.subprocess.Process, path: Path, timeout_s: float, memory_mib: int
) -> bytes | None:
    """The line that the process writes about a file; None if it ended or takes too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request_line(str(path), timeout_s + 1, memory_mib))
        await process.stdin.drain()
        async with asyncio.timeout(timeout_s):
            return await process.stdout.readline() or None
    except (ConnectionError, ValueError, TimeoutError):  # a ValueError: longer than a line may be
        return None


def _document(name: str, line: bytes) -> Document | BadRecord:
    try:
        return document_from(line, name)
    except MissingDependencyError as error:
        raise ApiError(501, "missing_package", "the server lacks a package", hint=error.hint) from error


def _busy() -> ApiError:
    message, hint = "too many files are being converted", "try again after the time in Retry-After"
    return ApiError(503, "overloaded", message, hint=hint, headers={"Retry-After": "10"})
