"""Changes of documents that were accepted: a queue on disk, from which versions of the index are made.

Changes that come within a few seconds make one version. In the folder `uploads` of the index, a
file for each change waits until its version is written, and one in `uploads/made` says what became
of it. All workers of a server share them: the one that has the lock makes the version. What a
killed server left is made at the next start.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from indexers.documents import Documents, Put
from indexers.index_writer import OpenEncoder
from indexers.ledger import remove_unused
from indexers.manifest import Manifest
from rag.core.errors import ConfigError, DataError, DiskFullError, RagError, ResourceError
from rag.core.files import atomic_write_text, directory_lock
from rag.core.log import get_logger
from rag.core.manifest import DATA_PREFIX, UPLOADS_DIR
from rag.data.records import Document
from rag.updates import IndexUpdater
from readers.protocols import check_lengths
from serve.errors import ApiError, invalid_request, refused
from serve.responses import DocumentOut
from serve.settings import ServeSettings

log = get_logger(__name__)
COLLECT_S = 2.0  # a change that nobody waits for waits for others
WAIT_S = 30.0  # longest wait for a version while another process writes the index
_LOOK_S = 10.0  # between two looks for changes that a worker left when it died
_POLL_S = 0.05
_MOST_WAITING = 1000
_MOST_WAITING_BYTES = 1 << 30
_MOST_MADE = 1000  # changes whose end is remembered
_ID = re.compile("[0-9]{20}-[0-9a-f]{8}")
_TOO_LONG = "split the document; this index keeps each as one passage. Nothing was changed"


class Change(BaseModel):
    """What a request asks for.

    Attributes:
        documents: new ones, each in place of the one with its id.
        deleted: ids of documents to delete.
        until_s: time (of `time.time`) until which the client waits for the end, and after which
            nothing is to be changed; None: it does not wait.
    """

    model_config = ConfigDict(frozen=True)

    documents: tuple[Document, ...] = ()
    deleted: tuple[str, ...] = ()
    until_s: float | None = None


class FailedOut(BaseModel):
    """A document that was not added, and why."""

    id: str
    message: str


class Version(BaseModel):
    """What became of a change: `waiting`, `made` or `failed`.

    Attributes:
        documents: those that were added or replaced.
        failed: those that could not be.
        deleted: for each id, whether there was such a document.
        index_version: version of the index that has the change.
        error: why nothing was changed.
    """

    id: str
    status: Literal["waiting", "made", "failed"]
    documents: list[DocumentOut] = []
    failed: list[FailedOut] = []
    deleted: dict[str, bool] = {}
    index_version: str = ""
    error: ApiError | None = None


class Uploads:
    """The queue of an index.

    Args:
        settings: of the server, with this index.
        open_encoder: the encoder of passages, of the index's identity.
    """

    def __init__(self, settings: ServeSettings, open_encoder: OpenEncoder) -> None:
        self._index = settings.index
        self._may_write = settings.knows_people
        self._folder = settings.index / UPLOADS_DIR
        self._updater = IndexUpdater(
            settings.index, settings.index_encoder, open_encoder=open_encoder
        )
        self._wake = asyncio.Event()

    async def add(self, change: Change) -> Version:
        """Write a change to the disk; it is not lost any more.

        Raises:
            ApiError: 503 if too many changes wait, 507 if the disk is full.
        """
        version = Version(id=f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}", status="waiting")
        await asyncio.to_thread(self._store, version.id, change)
        self.wake_in(COLLECT_S if change.until_s is None else 0.0)
        return version

    def wake_in(self, delay_s: float) -> None:
        """End the `wait` for changes after so many seconds."""
        asyncio.get_running_loop().call_later(delay_s, self._wake.set)

    async def wait(self) -> None:
        """Wait for changes to be made; at times the wait ends without a change."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _LOOK_S)
        self._wake.clear()

    def _store(self, id: str, change: Change) -> None:
        try:
            waiting = self._waiting()
            size_bytes = sum(path.stat().st_size for path in waiting if path.exists())
            if len(waiting) >= _MOST_WAITING or size_bytes > _MOST_WAITING_BYTES:
                raise refused("overloaded", "too many changes wait to be made", 10)
            atomic_write_text(self._file(id), change.model_dump_json())
        except RagError as error:
            raise refusal(error) from None

    def _waiting(self) -> list[Path]:
        """Files of the changes that wait, in the order in which they came."""
        return sorted(self._folder.glob("[0-9]*.json"))

    def _file(self, id: str) -> Path:
        return self._folder / f"{id}.json"

    def _made(self, id: str) -> Path:
        return self._folder / "made" / f"{id}.json"

    async def find(self, id: str, wait_s: float) -> Version | None:
        """What became of a change, once it has ended or the time is over; None if it is unknown."""
        deadline = time.monotonic() + wait_s
        while True:
            version = await asyncio.to_thread(self._read, id)
            is_waiting = version is not None and version.status == "waiting"
            if not is_waiting or time.monotonic() > deadline:
                return version
            await asyncio.sleep(_POLL_S)

    def _read(self, id: str) -> Version | None:
        # Another text may be too long for the name of a file.
        if not _ID.fullmatch(id):
            return None
        # Looked for in this order: the end of a change is written before its file is removed.
        is_waiting = self._file(id).exists()
        made = self._made(id)
        if made.exists():
            return Version.model_validate_json(made.read_bytes())
        return Version(id=id, status="waiting") if is_waiting else None

    def make(self) -> bool:
        """Make a version of all that waits; whether there was anything.

        Raises:
            ResourceError: it has to wait longer.
        """
        if not self._waiting():
            self._remove_old()
            return False
        with directory_lock(self._folder):
            changes = {}
            for path in self._waiting():
                try:
                    changes[path.stem] = Change.model_validate_json(path.read_bytes())
                except ValidationError as error:
                    log.error("%s is damaged, and is left out: %s", path, error)
            try:
                self._make_together(changes)
            except Exception as error:
                is_full = isinstance(error, DiskFullError)  # it stays full while this waits
                for id, change in changes.items():
                    if change.until_s is not None and (is_full or change.until_s < time.time()):
                        self._end(_failed(id, refusal(error)))
                raise
            for path in sorted((self._folder / "made").glob("*.json"))[:-_MOST_MADE]:
                path.unlink()
        return True

    def _remove_old(self) -> None:
        """Remove the versions that were still open when the next one was written."""
        n_versions = len(list(self._index.glob(f"{DATA_PREFIX}*")))
        if self._may_write and n_versions > 1:
            with suppress(RagError, OSError), directory_lock(self._index):
                remove_unused(self._index)

    def _make_together(self, changes: dict[str, Change]) -> None:
        """Make the changes as a single version; if that fails, one after another."""
        try:
            self._make_version(changes)
        except ResourceError:
            raise
        except RagError as error:
            for id, change in changes.items():
                if len(changes) > 1:
                    self._make_together({id: change})
                else:
                    self._end(_failed(id, refusal(error)))

    def _make_version(self, changes: dict[str, Change]) -> None:
        manifest = Manifest.read(self._index)
        stored = Documents(self._index / manifest.data / "passages")
        puts = dict[str, Put | None]()  # None: to be deleted
        versions = list[Version]()
        for id, change in changes.items():
            version = Version(id=id, status="made")
            cut = self._cut(change.documents, version)
            if version.failed and change.until_s is not None:
                versions.append(_failed(id, invalid_request(version.failed[0].message, _TOO_LONG)))
                continue
            puts |= {put.id: put for put in cut}
            for document_id in change.deleted:
                is_there = stored.find(document_id) is not None
                if document_id in puts:
                    is_there = puts[document_id] is not None
                version.deleted[document_id] = is_there
                puts[document_id] = None
            versions.append(version)
        index_version = manifest.version
        if puts:
            documents = [put for put in puts.values() if put is not None]
            deleted = [id for id, put in puts.items() if put is None]
            index_version = self._updater.change(documents, deleted).version
        for version in versions:
            version.index_version = index_version
            self._end(version)

    def _cut(self, documents: Sequence[Document], version: Version) -> list[Put]:
        """Documents in passages; the version names those that cannot be cut."""
        puts = []
        for document in documents:
            try:
                (put,) = self._updater.cut([document])
                check_lengths(put.passages)
            except DataError as error:
                version.failed.append(FailedOut(id=document.id, message=error.message))
                continue
            puts.append(put)
            version.documents.append(DocumentOut(id=put.id, passages=len(put.passages), sent=True))
        return puts

    def _end(self, version: Version) -> None:
        """Write what became of a change, which does not wait any more."""
        atomic_write_text(self._made(version.id), version.model_dump_json())
        self._file(version.id).unlink(missing_ok=True)


def _failed(id: str, error: ApiError) -> Version:
    return Version(id=id, status="failed", error=error)


def refusal(error: Exception) -> ApiError:
    """The answer for a change that cannot be made."""
    if isinstance(error, DataError | ConfigError):
        return ApiError(409, "not_possible", error.message, "nothing was changed")
    log.error("documents could not be written: %s", error)
    if isinstance(error, DiskFullError):
        message = "the index could not be written: the server's disk is full"
        hint = "nothing was changed; free some space on the server"
        return ApiError(507, "disk_full", message, hint)
    if isinstance(error, ResourceError):
        message = "the index is being written by another process, or the server lacks memory or its encoder"
        hint = "try again in a moment; nothing was changed"
        return refused("index_busy", message, 10, hint)
    message = "the index cannot be updated"
    return ApiError(500, "index_unusable", message, "the server's log has the reason")
