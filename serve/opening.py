"""Open the pipeline of the index that is served, and newer versions of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from rag.opening import OpenSettings
from serve.settings import ServeSettings

if TYPE_CHECKING:
    from rag.pipeline import Pipeline

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

    index = settings.index if settings.ray is None else open_sharded(settings.index, settings.ray)
    pipeline = Pipeline.open(index, **settings.model_dump(include=set(OpenSettings.model_fields)))
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
