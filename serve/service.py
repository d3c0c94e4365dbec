"""The server's interface to a pipeline, and the holder that replaces one while requests run."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Literal, Protocol, runtime_checkable

from rag.core.arrays import Float32
from rag.core.errors import ConfigError, ResourceError
from rag.core.log import get_logger
from rag.core.progress import StageTimer
from rag.core.types import AnswerSet, Passage, RankedPassages
from rag.data.filters import Filter
from serve.settings import ServeSettings

log = get_logger(__name__)


@runtime_checkable
class AnswerService(Protocol):
    """Answers questions and retrieves passages; `rag.pipeline.Pipeline` is one.

    `retrieve` and `embed` are called from one thread at a time, and so is `ask`, but from `reads_at_once`
    others if that is not 0; `passage` and the properties from any thread. `close` is called once, after the
    last call has returned.
    """

    @property
    def index_version(self) -> str:
        """Short version of the index, from its checksum."""

    @property
    def n_passages(self) -> int:
        """Number of passages of the index."""

    @property
    def folders(self) -> list[str]:
        """Folders of the indexed files."""

    @property
    def reads_at_once(self) -> int:
        """Questions that a reader elsewhere takes at a time; 0: it runs in this process."""

    def ask(
        self, questions: Sequence[str], *, top_k: int, n_best: int, filter: Filter | None = None
    ) -> list[AnswerSet]:
        """One `AnswerSet` per question, in the order given, from passages that the filter selects."""

    def retrieve(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        filter: Filter | None = None,
        timer: StageTimer | None = None,
    ) -> list[RankedPassages]:
        """Best passages of each question, best first; `timer` records the time of each stage."""

    def embed(self, texts: Sequence[str], side: Literal["query", "passage"]) -> Float32:
        """Vectors (n, D) float32 of texts, as questions or as passages.

        Raises:
            ConfigError: the index has no such vectors.
        """

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""

    def around(self, passage_id: str, count: int) -> tuple[list[Passage], list[Passage]]:
        """At most `count` passages before and after this one in its document."""

    def close(self) -> None:
        """Release files and memory."""


OpenService = Callable[[ServeSettings], AnswerService]


def open_pipeline(settings: ServeSettings) -> AnswerService:
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
    pipeline = Pipeline.open(
        folder if settings.ray is None else open_sharded(folder, settings.ray),
        settings,
    )
    if isinstance(pipeline.index, Index):
        threading.Thread(target=pipeline.index.read_ahead, name="rag-read-ahead", daemon=True).start()
    try:
        pipeline.ask(["Is everything loaded?"], top_k=settings.read_top_k, n_best=settings.n_best)
    except BaseException:
        pipeline.close()
        raise
    return pipeline


def reopened(service: AnswerService) -> AnswerService | None:
    """The version of a pipeline's index that is on disk now, with the same models; None if it is the same.

    Raises:
        RagError: the index is damaged, belongs to another encoder now, or the service is no pipeline.
    """
    from indexers.index import Index
    from rag.pipeline import Pipeline
    from retrievers.open import over_index

    if not isinstance(service, Pipeline):
        raise ConfigError(f"a {type(service).__name__} has no index that is updated")
    index = Index.open(service.index.directory)
    try:
        if index.version != service.index_version:
            if service.index.encoder_identity is not None:
                index.check_encoder(service.index.encoder_identity)
            return Pipeline(index, over_index(service.retriever, index), service.reader)
    except BaseException:
        index.close()
        raise
    index.close()
    return None


class _Slot:
    """One service, and the number of its users."""

    def __init__(self, service: AnswerService) -> None:
        self.service, self.users, self.retired = service, 0, False


class ServiceHolder:
    """Holds the current service; `swap` replaces it while requests run.

    Every user of the service takes a lease; a replaced service is closed when its last lease ends, so running
    requests finish on the index with which they started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slot: _Slot | None = None

    @property
    def current(self) -> AnswerService | None:
        """The service for new requests; None while loading. For reading its properties, not for calls."""
        slot = self._slot
        return slot.service if slot is not None else None

    @contextmanager
    def lease(self) -> Iterator[AnswerService]:
        """Use the current service; it is not closed before this block ends.

        Raises:
            ResourceError: nothing is loaded.
        """
        with self._lock:
            slot = self._slot
            if slot is None:
                raise ResourceError("no index is loaded", hint="wait for /readyz to answer 200")
            slot.users += 1
        try:
            yield slot.service
        finally:
            with self._lock:
                slot.users -= 1
                is_last = slot.retired and slot.users == 0
            if is_last:
                _close(slot.service)

    def swap(self, service: AnswerService | None) -> str | None:
        """Make `service` the current one (None: no service); returns the version that it replaces."""
        with self._lock:
            old, self._slot = self._slot, _Slot(service) if service is not None else None
            if old is None:
                return None
            old.retired = True
            is_unused = old.users == 0
        version = old.service.index_version
        if is_unused:
            _close(old.service)
        return version


def _close(service: AnswerService) -> None:
    try:
        service.close()
    except Exception:  # a failing close must not fail the request that happened to be the last
        log.exception("closing a replaced index failed")
