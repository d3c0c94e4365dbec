"""Write the documents that clients send: changes that wait are written together, by one writer per index.

While a command updates the index, changes wait for its lock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexers.changes import Known, Put, sent_changes
from indexers.documents import record_digest
from indexers.index import Index
from indexers.protocols import EncoderIdentity, PassageEncoder
from indexers.provenance import split_of_index
from indexers.update import merge_segments, update_index
from rag.core.errors import ConfigError, DataError, RagError, ResourceError
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.records import Document
from rag.data.split import split_documents
from readers.protocols import check_lengths
from serve.engine import Engine
from serve.errors import ApiError, invalid_request

log = get_logger(__name__)
_LOCK_WAIT_S, _RETRY_S = 30.0, 0.5


@dataclass(slots=True)
class _Write:
    """One request's documents, cut into passages, or the id to delete; `known` says whether it was there."""

    puts: list[Put]
    deleted: list[str]
    done: asyncio.Future[str]
    known: set[str] = field(default_factory=set)


class DocumentWriter:
    """Writes the documents that are sent for one index, one update at a time."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name, self.place = engine, name, Path(engine.settings.indexes[name])
        self._waiting: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        self._encoder: tuple[EncoderIdentity, PassageEncoder] | None = None
        self._cut: tuple[Any, Callable[[Document], list[Passage]]] | None = None

    async def write(self, documents: Sequence[Document], deleted: Sequence[str]) -> tuple[str, set[str]]:
        """The version of the index with these changes, and which of the ids it had before.

        Raises:
            ApiError: the change cannot be made, or another writer holds the index for too long.
        """
        try:
            puts = await self.engine.in_thread(self._cut_documents, documents)
        except RagError as error:
            raise _refusal(error) from None
        write = _Write(puts, list(deleted), asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name=f"rag-documents-{self.name}")
        return await asyncio.shield(write.done), write.known

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            if not await self._attempt(batch) and len(batch) > 1:
                for write in batch:  # one of them fails: try each alone
                    await self._attempt([write])
        try:  # after a failure, the next change tries again
            if await self.engine.in_thread(merge_segments, self.place, self._open_encoder):
                await self.engine.refresh(self.name)
        except RagError as error:
            log.warning("segments were not merged: %s", error)
        except Exception:  # waiting requests need an answer
            log.exception("segments were not merged", extra={"index": self.name})
        if self._waiting:  # requests that came in the meantime
            await self._work()

    async def _attempt(self, batch: list[_Write]) -> bool:
        try:
            version = await self._update(batch)
        except RagError as error:
            if len(batch) == 1:
                batch[0].done.set_exception(_refusal(error))
            return False
        except Exception:
            log.exception("documents could not be written", extra={"index": self.name})
            failed = ApiError(500, "internal_error", "the server failed to write the documents")
            for write in batch:
                write.done.set_exception(failed)
            return True
        for write in batch:
            write.done.set_result(version)
        return True

    async def _update(self, batch: list[_Write]) -> str:
        deadline = asyncio.get_running_loop().time() + _LOCK_WAIT_S
        while True:
            try:
                version = await self.engine.in_thread(self._write_batch, batch)
                break
            except ResourceError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(_RETRY_S)
        await self.engine.refresh(self.name)
        return version

    def _write_batch(self, batch: list[_Write]) -> str:
        puts: dict[str, Put] = {}
        deleted: dict[str, None] = {}
        for write in batch:  # the later request counts
            for id in write.deleted:
                puts.pop(id, None)
                deleted[id] = None
            for put in write.puts:
                deleted.pop(put.id, None)
                puts[put.id] = put

        def changes(known: Known) -> Any:
            ids = set(known)
            for write in batch:
                write.known = ids & {*write.deleted, *(put.id for put in write.puts)}
                ids = (ids - set(write.deleted)) | {put.id for put in write.puts}
            return sent_changes(puts.values(), deleted, known)

        return update_index(self.place, changes, self._open_encoder, merge=False).version

    def _open_encoder(self, identity: EncoderIdentity) -> PassageEncoder:
        """An encoder of its own: that of the questions works on another thread."""
        from retrievers.encoders.open import load_like

        if self._encoder is None or self._encoder[0] != identity:  # a reload may bring another index
            settings = self.engine.settings
            opened = load_like(identity, settings.index_encoder, precision=settings.precision)
            self._encoder = identity, opened
        return self._encoder[1]

    def _cut_documents(self, documents: Sequence[Document]) -> list[Put]:
        if not documents:
            return []
        cut = self._open_cut()
        puts = [Put(one.id, record_digest(one), cut(one), sent=True) for one in documents]
        try:
            check_lengths(passage for put in puts for passage in put.passages)
        except DataError as error:
            hint = "split the document; this index keeps each as one passage. Nothing was changed"
            raise invalid_request(error.message, hint) from None
        return puts

    def _open_cut(self) -> Callable[[Document], list[Passage]]:
        """How the index that is in place now cuts documents into passages."""
        from retrievers.encoders.open import passage_budget

        with Index.open(self.place, verify="none") as index:
            identity = index.encoder_identity
        key = identity, split_of_index(self.place)
        if self._cut is None or self._cut[0] != key:
            name, length = (identity.name, identity.max_length) if identity else (None, None)
            budget, count = passage_budget(self.engine.settings.index_encoder or name, length)
            split = split_of_index(self.place, budget)
            self._cut = key, lambda one: list(split_documents([one], split, count))
        return self._cut[1]


def _refusal(error: RagError) -> ApiError:
    """The answer for a change that cannot be made."""
    if isinstance(error, ResourceError):
        log.error("documents could not be written: %s", error)
        return ApiError(
            503, "index_busy", "the index is being written by another process, or the disk is full",
            hint="try again in a moment; nothing was changed", headers={"Retry-After": "10"},
        )  # fmt: skip
    if isinstance(error, DataError | ConfigError):
        return ApiError(409, "not_possible", error.message, hint="nothing was changed")
    log.error("documents could not be written: %s", error)
    return ApiError(
        500, "index_unusable", "the index cannot be updated", hint="the server's log has the reason"
    )
