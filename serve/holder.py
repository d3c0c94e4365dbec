"""Open the pipeline of an index, and hold it so that it can be replaced while requests run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from rag.core.errors import ResourceError
from rag.core.log import get_logger
from serve.settings import ServeSettings

if TYPE_CHECKING:
    from rag.pipeline import Pipeline

log = get_logger(__name__)
OpenPipeline = Callable[[ServeSettings], "Pipeline"]


def open_pipeline(settings: ServeSettings) -> Pipeline:
    """Open the pipeline of the settings' only index and warm it up with one question, while the system reads
    the files of its search into memory.

    Raises:
        RagError: the index or a model cannot be used.
    """
    from indexers.index import Index

    # the reader needs torch, whose import takes as long as opening a large index
    threading.Thread(target=import_module, args=("torch",), name="rag-import", daemon=True).start()
    from rag.pipeline import Pipeline
    from rag.scale.search import open_sharded

    (folder,) = settings.indexes.values()
    pipeline = Pipeline.open(folder if settings.ray is None else open_sharded(folder, settings.ray), settings)
    if isinstance(pipeline.index, Index):
        threading.Thread(target=pipeline.index.read_ahead, name="rag-read-ahead", daemon=True).start()
    try:
        pipeline.ask(["Is everything loaded?"])
    except BaseException:
        pipeline.close()
        raise
    return pipeline


def open_newer(pipeline: Pipeline) -> Pipeline | None:
    """The version of a pipeline's index that is on disk now, with the same models; None if it is the same.

    Raises:
        MismatchedArtifactError: the index belongs to another encoder now.
        RagError: the index is damaged.
    """
    from indexers.index import Index
    from rag.pipeline import Pipeline
    from retrievers.open import over_index

    index = Index.open(pipeline.index.directory)
    try:
        if index.version != pipeline.index_version:
            if pipeline.index.encoder_identity is not None:
                index.check_encoder(pipeline.index.encoder_identity)
            return Pipeline(index, over_index(pipeline.retriever, index), pipeline.reader)
    except BaseException:
        index.close()
        raise
    index.close()
    return None


class _Slot:
    """One pipeline, and the number of its users."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.users, self.is_retired = pipeline, 0, False


class PipelineHolder:
    """Holds the current pipeline of an index; `swap` replaces it while requests run.

    Every user takes a lease; a replaced pipeline is closed when its last lease ends, so running requests
    finish on the index with which they started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slot: _Slot | None = None

    @property
    def current(self) -> Pipeline | None:
        """The pipeline for new requests; None while loading. For reading its properties, not for calls."""
        slot = self._slot
        return slot.pipeline if slot is not None else None

    @contextmanager
    def lease(self) -> Iterator[Pipeline]:
        """Use the current pipeline; it is not closed before this block ends.

        Raises:
            ResourceError: nothing is loaded.
        """
        with self._lock:
            slot = self._slot
            if slot is None:
                raise ResourceError("no index is loaded", hint="wait for /readyz to answer 200")
            slot.users += 1
        try:
            yield slot.pipeline
        finally:
            with self._lock:
                slot.users -= 1
                is_last = slot.is_retired and slot.users == 0
            if is_last:
                _close(slot.pipeline)

    def swap(self, pipeline: Pipeline | None) -> str | None:
        """Make `pipeline` the current one (None: no pipeline); returns the version that it replaces."""
        with self._lock:
            old, self._slot = self._slot, _Slot(pipeline) if pipeline is not None else None
            if old is None:
                return None
            old.is_retired = True
            is_unused = old.users == 0
        version = old.pipeline.index_version
        if is_unused:
            _close(old.pipeline)
        return version


def _close(pipeline: Pipeline) -> None:
    try:
        pipeline.close()
    except Exception:  # a failing close must not fail the request that happened to be the last
        log.exception("closing a replaced index failed")
