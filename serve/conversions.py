"""Convert uploaded files, an upload in a separate process, a few at a time in the whole server."""

import asyncio
import fcntl
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from rag.core.errors import MissingDependencyError
from rag.data.documents.read import Converter
from rag.data.records import BadRecord, Document
from serve.errors import ApiError, invalid_request, refused

_MEMORY_MIB = 2048  # all conversions of the server together
_FILE_S = 30.0
_UPLOAD_S = 60.0  # all files of one upload
_SLOT_WAIT_S = 10.0
_POLL_S = 0.05
# Uploads that wait or are converted, in this process.
_MOST_OF_KEY = 4
_MOST = 16
_NICENESS = 10  # questions go first
Uploaded = tuple[list[Document], dict[str, list[str]]]  # with remarks, see `Conversions.convert`


class Conversions:
    """Converts uploads; reads of passages and questions share no thread with them.

    Args:
        folder: holds a lock file per slot, which all workers of the server share, and files being
            converted.
        slots: uploads converted at a time.

    Attributes:
        uploads: number of those of this process that wait or are converted, by key.
    """

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder = folder
        self.slots = slots
        self.uploads = Counter[str]()
        self._threads = ThreadPoolExecutor(thread_name_prefix="rag-convert")

    async def convert(self, key: str, files: Sequence[tuple[str, bytes]]) -> Uploaded:
        """The documents of files, named, with their content; and remarks: why the other files
        cannot be read ("unreadable"), what conversion lost ("notes").

        Cancelling this call ends the conversion.

        Raises:
            ApiError: 422: no file can be read, or one has no usable name; 501: the server lacks the
                package for a format; 503: too many uploads, of this key or of all.
        """
        for name, _ in files:
            is_short = len(name.encode("utf-8", "replace")) <= 255
            if name in ("", ".", "..") or not name.isprintable() or not is_short:
                hint = 'give the form field a file name such as filename="guide.pdf"'
                raise invalid_request(f"{name[:100]!r} cannot be the name of a file", hint)
        if self.uploads[key] >= _MOST_OF_KEY or self.uploads.total() >= _MOST:
            raise _busy()
        self.uploads[key] += 1
        try:
            async with self._slot():
                with tempfile.TemporaryDirectory(
                    prefix="upload-", dir=self.folder, ignore_cleanup_errors=True
                ) as folder:
                    documents, remarks = await self._convert(files, Path(folder))
            if not documents:
                raise ApiError(422, "unreadable_file", "; ".join(remarks["unreadable"]))
            return documents, remarks
        finally:
            # A key without uploads is forgotten.
            self.uploads -= Counter([key])

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold the lock of a slot."""
        deadline = time.monotonic() + _SLOT_WAIT_S
        while True:
            for number in range(self.slots):
                with (self.folder / f"slot-{number}").open("ab") as lock:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield
                    return
            if time.monotonic() > deadline:
                raise _busy()
            await asyncio.sleep(_POLL_S)

    async def _convert(self, files: Sequence[tuple[str, bytes]], folder: Path) -> Uploaded:
        documents: list[Document] = []
        remarks: dict[str, list[str]] = {"unreadable": [], "notes": []}
        converter = Converter(_NICENESS)
        ends = time.monotonic() + _UPLOAD_S

        def run(path: Path, content: bytes, left_s: float) -> Document | BadRecord:
            path.parent.mkdir()
            path.write_bytes(content)
            return converter.convert(str(path), path.name, left_s, _MEMORY_MIB // self.slots)

        try:
            for number, (name, content) in enumerate(files):
                left_s = max(0.1, min(_FILE_S, ends - time.monotonic()))
                running = self._threads.submit(run, folder / str(number) / name, content, left_s)
                item = await asyncio.wrap_future(running)  # its process ends itself after `left_s`
                if isinstance(item, BadRecord):
                    remarks["unreadable"].append(f"{name}: {item.reason} ({item.detail})")
                else:
                    documents.append(item)
                    remarks["notes"] += [f"{name}: {note}" for note in item.notes]
        except MissingDependencyError as error:
            raise ApiError(
                501, "missing_package", "the server lacks a package", hint=error.hint
            ) from error
        finally:
            converter.close()
        return documents, remarks


def _busy() -> ApiError:
    return refused("overloaded", "too many files are being converted", 10)
