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
    """Open the pipeline of the settings' index and warm it up with one question, while the system reads
    the files of its search into memory.

    Raises:
        RagError: the index or a model cannot be used.
    """
    # the reader needs torch, whose import takes as long as opening a large index
    threading.Thread(target=import_module, args=("torch",), name="rag-import", daemon=True).start()
    from rag.pipeline import Pipeline
    from rag.scale.search import open_sharded

    folder = settings.index
    pipeline = Pipeline.open(folder if settings.ray is None else open_sharded(folder, settings.ray), settings)
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


class PipelineHolder:
    """Holds the current pipeline; `swap` replaces it while requests run.

    Every user takes a lease; a replaced pipeline is closed when its last lease ends, so running requests
    finish on the index with which they started.

    Attributes:
        current: for new requests; None while loading. For reading its properties, not for calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.current: Pipeline | None = None
        self._users: dict[Pipeline, int] = {}  # leases, and one of the holder itself

    @contextmanager
    def lease(self) -> Iterator[Pipeline]:
        """Use the current pipeline; it is not closed before this block ends.

        Raises:
            ResourceError: nothing is loaded.
        """
        with self._lock:
            pipeline = self.current
            if pipeline is None:
                raise ResourceError("no index is loaded", hint="wait for /readyz to answer 200")
            self._users[pipeline] += 1
        try:
            yield pipeline
        finally:
            self._release(pipeline)

    def swap(self, pipeline: Pipeline | None) -> str | None:
        """Make `pipeline` the current one (None: no pipeline); returns the version that it replaces."""
        with self._lock:
            old, self.current = self.current, pipeline
            if pipeline is not None:
                self._users[pipeline] = 1
        if old is None:
            return None
        version = old.index_version
        self._release(old)
        return version

    def _release(self, pipeline: Pipeline) -> None:
        with self._lock:
            self._users[pipeline] -= 1
            if self._users[pipeline] > 0:
                return
            del self._users[pipeline]
        try:
            pipeline.close()
        except Exception:  # which must not fail the request that happened to be the last
            log.exception("closing a replaced index failed")
