"""The indexes of a server: each is a shelf, which follows its folder and takes changes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rag.core.errors import MismatchedArtifactError, RagError
from rag.core.log import get_logger
from rag.core.manifest import index_version
from rag.opening import OpenSettings
from serve.errors import shutting_down
from serve.metrics import ServerMetrics
from serve.settings import ServeSettings
from serve.threads import Threads
from serve.uploads import Uploads

if TYPE_CHECKING:
    from indexers.index import Index
    from rag.pipeline import Pipeline

log = get_logger(__name__)
OpenPipeline = Callable[[ServeSettings], "Pipeline"]


@dataclass(frozen=True, slots=True)
class Scope:
    """What a request may see. Every door takes it from `Engine.scope`, and shows nothing beyond it.

    Only questions of equal scopes share a batch. What narrows a request further belongs here.

    Attributes:
        shelves: names of the shelves that are asked.
    """

    shelves: tuple[str, ...]


class Shelf:
    """An index of the server.

    Args:
        settings: of the server, with this index.
        open_pipeline: opens the index, on a thread.

    Attributes:
        uploads: the changes of its documents.
        pipeline: of new requests; None while the index is not open. Running requests finish on the
            one with which they started; one that was replaced is closed with the last of them.
    """

    def __init__(
        self,
        settings: ServeSettings,
        open_pipeline: OpenPipeline,
        threads: Threads,
        metrics: ServerMetrics,
    ) -> None:
        self.settings = settings
        self.uploads = Uploads(settings, threads, self.replace)
        self.pipeline: Pipeline | None = None
        self._lock = threading.Lock()
        self._n_leases = Counter["Pipeline"]()  # the shelf itself has one of its pipeline
        self._open_pipeline = open_pipeline
        self._threads = threads
        self._metrics = metrics
        self._reload_lock = asyncio.Lock()
        # A version that cannot be opened is tried once, an index that is gone logged once.
        self._seen: str | None = None

    async def open(self) -> Pipeline:
        """Open the index and take it into use.

        Raises:
            RagError: the index or a model cannot be used.
        """
        pipeline = await self._threads.in_background(self._open_pipeline, self.settings)
        await self._install(pipeline)
        return pipeline

    def close(self) -> None:
        """Close the index once no request uses it."""
        self._exchange(None)

    @contextmanager
    def lease(self) -> Iterator[Pipeline]:
        """The pipeline in use, which stays open inside the block.

        Raises:
            ApiError: 503 after `close`.
        """
        with self._lock:
            pipeline = self.pipeline
            if pipeline is None:
                raise shutting_down()
            self._n_leases[pipeline] += 1
        try:
            yield pipeline
        finally:
            self._release(pipeline)

    def _release(self, pipeline: Pipeline) -> None:
        with self._lock:
            self._n_leases[pipeline] -= 1
            is_unused = self._n_leases[pipeline] == 0
            if is_unused:
                del self._n_leases[pipeline]
        if is_unused:
            pipeline.close()

    def _exchange(self, pipeline: Pipeline | None) -> None:
        """Give new requests this pipeline in place of the one in use."""
        with self._lock:
            previous = self.pipeline
            self.pipeline = pipeline
            if pipeline is not None:
                self._n_leases[pipeline] += 1
        if previous is not None:
            self._release(previous)

    def read_only(self) -> str:
        """Why documents cannot be changed; "" if they can, or if that is off because there are no
        keys.
        """
        folder = self.settings.index
        may_write = not self.settings.api_keys or not folder.exists() or os.access(folder, os.W_OK)
        return "" if may_write else "its folder is read-only for this server"

    async def replace(self, *, anew: bool = False) -> None:
        """Switch to the version of the index that is on disk now; if it cannot be opened, the one
        in use stays, and the log has the reason.

        Args:
            anew: also open its models anew, and the same version again; else those in use are kept
                if they belong to the index.
        """
        async with self._reload_lock:
            if self.pipeline is None:
                return
            version = self.pipeline.index_version
            if not anew and await self._version_on_disk() == version:
                return
            try:
                opened = await self._threads.in_background(self._opened, anew)
            except Exception:
                log.exception("the index could not be opened; the one in use stays")
                return
            await self._install(opened)

    async def _version_on_disk(self) -> str:
        return await self._threads.in_thread(_version_in, self.settings.index)

    def _opened(self, anew: bool) -> Pipeline:
        if not anew and self.pipeline is not None:
            # All of it has to be opened where the models do not fit the new version.
            with suppress(MismatchedArtifactError):
                return open_newer(self.settings, self.pipeline)
        return self._open_pipeline(self.settings)

    async def look(self) -> None:
        """Switch to an update that another process has written, if there is one."""
        version = await self._version_on_disk()
        if self.pipeline is None or version == self._seen:
            return
        self._seen = version
        if not version:
            log.warning("%s holds no readable index; the one in use stays", self.settings.index)
        elif version != self.pipeline.index_version:
            await self.replace()

    async def _install(self, pipeline: Pipeline) -> None:
        previous = None if self.pipeline is None else self.pipeline.index_version
        self._metrics.index_changed(pipeline.index_version, len(pipeline.index.passages), previous)
        versions = {"index_version": pipeline.index_version, "previous_index_version": previous}
        log.info("index in use: %s", self.settings.index.resolve(), extra=versions)
        await self._threads.in_background(self._exchange, pipeline)


def open_index(settings: ServeSettings) -> Index:
    """Open the index of the settings, whose vectors are searched on a cluster if they name one.

    Raises:
        RagError: the index is damaged, or the cluster cannot search it.
    """
    from indexers.index import Index
    from rag.scale.search import open_sharded

    if settings.ray is None:
        return Index.open(settings.index)
    return open_sharded(settings.index, settings.ray)


def open_pipeline(settings: ServeSettings) -> Pipeline:
    """Open the pipeline of the settings' index and warm it up with one question.

    A model elsewhere is not asked: its outage would keep the searches from starting, too.

    Raises:
        RagError: the index or a model cannot be used.
    """
    from rag.pipeline import Pipeline

    options = settings.model_dump(include=set(OpenSettings.model_fields))
    pipeline = Pipeline.open(open_index(settings), **options)
    try:
        reader = pipeline.reader
        if reader is None or reader.max_concurrent:
            # A model at an address is not asked: its outage must not stop the search.
            pipeline.retrieve("Is everything loaded?")
        else:
            pipeline.ask("Is everything loaded?")
    except BaseException:
        pipeline.close()
        raise
    return pipeline


def open_newer(settings: ServeSettings, pipeline: Pipeline) -> Pipeline:
    """The version of the index that is on disk now, with the models of a pipeline.

    Raises:
        MismatchedArtifactError: the index has another encoder now, or its retriever cannot move to
            another.
        RagError: the index is damaged.
    """
    from rag.pipeline import Pipeline

    index = open_index(settings)
    try:
        if pipeline.index.encoder_identity is not None:
            index.check_encoder(pipeline.index.encoder_identity)
        retriever = pipeline.retriever.over(index)
        return Pipeline(index, retriever, pipeline.reader, pipeline.verifier)
    except BaseException:
        index.close()
        raise


def _version_in(folder: Path) -> str:
    """The version of the index in a folder; "" if its manifest cannot be read."""
    try:
        return index_version(folder)
    except (RagError, OSError):  # also of a file system that is away for a while
        return ""
