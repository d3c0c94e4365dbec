"""The indexes of a server. An index is a shelf, which is opened when it is asked, follows its
folder, and takes changes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from indexers.documents import Documents
from indexers.manifest import Manifest
from indexers.rights import DocumentRights, RightsError, rights_version
from rag.core.errors import (
    ArtifactError,
    MismatchedArtifactError,
    RagError,
    ResourceError,
    RetrievalError,
)
from rag.core.log import get_logger
from rag.core.manifest import index_version
from rag.core.types import Groups
from rag.opening import OpenSettings, open_models
from serve.errors import ApiError, refused
from serve.metrics import ServerMetrics
from serve.settings import ServeSettings
from serve.uploads import Uploads

if TYPE_CHECKING:
    from indexers.index import Index
    from indexers.protocols import EncoderIdentity, PassageEncoder
    from rag.pipeline import Pipeline

log = get_logger(__name__)
OpenPipeline = Callable[[ServeSettings], "Pipeline"]
Result = TypeVar("Result")
_LISTED = "GET /v1/models lists the shelves"
_RETRY_S = 0.5  # until changes that could not be made are tried again


@dataclass(frozen=True, slots=True)
class Scope:
    """What a request may see. Every door takes it from `Engine.scope`, and shows nothing beyond it.

    Only questions of equal scopes share a batch. What narrows a request further belongs here.

    Attributes:
        shelves: names of the shelves that are asked, in order.
        is_stated: whether the request named them; else those that cannot be opened are left out,
            which the answer says.
        groups: groups of the person who asks: no other document exists for the request.
    """

    shelves: tuple[str, ...]
    is_stated: bool
    groups: Groups


class Shelf:
    """An index of the server. What takes longer than a look at an attribute belongs on a thread.

    Args:
        settings: of the server, with the absolute path of this index.
        shelves: the server's, this one included.
        name: "" where the server has one index, which no answer names.

    Attributes:
        uploads: the changes of its documents.
        pipeline: the pipeline of new requests; None while the index is not open. A running request
            finishes on the pipeline with which it started; a replaced pipeline is closed with its
            last request.
        fault: why the index cannot be opened; "" if nothing is known against it.
        version: of the index on disk, when it was last looked at.
        n_passages: number of its passages that everybody may read.
    """

    def __init__(self, settings: ServeSettings, shelves: Shelves, name: str) -> None:
        self.settings = settings
        self.name = name
        self.fault = ""
        self.version = ""
        self.n_passages = 0
        self.pipeline: Pipeline | None = None
        self.uploads = Uploads(settings, shelves.open_encoder)
        self._shelves = shelves
        self._lock = threading.Lock()
        self._n_leases = Counter["Pipeline"]()  # the shelf itself has one of its pipeline
        # Held while the index is opened or replaced: nobody waits for it on the event loop.
        self._opening = threading.Lock()
        self._folder = ""  # of the index that is open, without links
        # A version that cannot be opened is tried once, an index that is gone logged once.
        self._seen: tuple[str, str, str] | None = None
        self._lacks_files = False
        self._uploading: asyncio.Task[None] | None = None

    @contextmanager
    def lease(self) -> Iterator[Pipeline]:
        """The pipeline, which is opened if it is not, and stays open inside the block.

        Raises:
            ApiError: 503: the index cannot be opened.
        """
        pipeline = self._take()
        while pipeline is None:
            try:
                self.open()
            except RagError as error:
                log.error("the shelf %s cannot be opened: %s", self.name, error)
                message = f"the shelf {self.name!r} cannot be opened"
                hint = "the server's log has the reason; other shelves can be asked"
                raise refused("shelf_unavailable", message, 10, hint) from error
            pipeline = self._take()
        try:
            self._shelves.touch(self)
            yield pipeline
        finally:
            self._release(pipeline)

    def _take(self) -> Pipeline | None:
        with self._lock:
            if self.pipeline is not None:
                self._n_leases[self.pipeline] += 1
            return self.pipeline

    def _release(self, pipeline: Pipeline) -> None:
        with self._lock:
            self._n_leases[pipeline] -= 1
            is_used = self._n_leases[pipeline] > 0
            if not is_used:
                del self._n_leases[pipeline]
        if not is_used:
            pipeline.close()

    def _exchange(self, pipeline: Pipeline | None) -> Pipeline | None:
        """Give new requests this pipeline; return the one that was in use, which is to be released:
        not while the shelf is being opened, because closing waits for questions, of which one may
        wait for the shelf.
        """
        previous = self.in_use
        with self._lock:
            replaced = self.pipeline
            self.pipeline = pipeline
            if pipeline is not None:
                self._n_leases[pipeline] += 1
        if pipeline is not None:
            version = pipeline.index_version
            self._shelves.metrics.index_changed(version, previous, self.name)
            self.count_open()
            versions = {"index_version": version, "previous_index_version": previous or None}
            log.info("index in use: %s", self.settings.index.resolve(), extra=versions)
        return replaced

    def open(self) -> None:
        """Open the index if it is not open.

        Raises:
            RagError: the index or a model cannot be used.
        """
        with self._opening:
            if self.pipeline is not None:
                return
            if self.fault:
                raise ArtifactError(self.fault)
            try:
                self._exchange(self._open())
            except RagError as error:
                # A lack of files or memory may pass, or that of a model behind an address.
                may_pass = isinstance(error, ResourceError) or isinstance(error.__cause__, OSError)
                if not may_pass:
                    self.fault = error.message
                raise
        # The index may be gone meanwhile.
        if self.fault:
            self.close()

    def replace(self, anew: bool = False) -> bool:
        """Switch to the version of the index that is on disk now. If that cannot be opened, the
        version in use stays, and the log has the reason. An index that is not open stays closed.

        Args:
            anew: also open its models anew, and the same version again; else the models in use are
                kept if they belong to the index.

        Returns:
            Whether the pipeline in use is another one now.
        """
        with self._opening:
            # The same version at another place has other rights.
            on_disk = (os.path.realpath(self.settings.index), _version_in(self.settings.index))
            is_current = not anew and on_disk == (self._folder, self.in_use)
            if self.pipeline is None or is_current:
                return False
            try:
                opened = self._open(anew)
            except Exception as error:
                log.exception("the index could not be opened; the one in use stays")
                if isinstance(error, ResourceError):
                    self._seen = None
                return False
            replaced = self._exchange(opened)
        # A shelf that was closed meanwhile stays closed.
        if replaced is None:
            self.close()
        else:
            self._release(replaced)
        return True

    async def follow(self) -> None:
        """The same as `replace`, in the background."""
        await self._shelves.in_background(self.replace)

    def _open(self, anew: bool = False) -> Pipeline:
        # Looked at first: a link that is pointed elsewhere meanwhile is then seen.
        folder = os.path.realpath(self.settings.index)
        pipeline = self._shelves.open(self, anew)
        self._folder = folder
        return pipeline

    def close(self, fault: str = "") -> None:
        """Close the index once no request uses it.

        Args:
            fault: why it is not to be opened again.
        """
        self.fault = fault or self.fault
        closed = self._exchange(None)
        if closed is not None:
            self._release(closed)

    def start(self) -> None:
        """Begin to make the changes that wait."""
        self._uploading = asyncio.create_task(self._make_changes())

    def stop(self) -> None:
        """Make no more changes."""
        if self._uploading is not None:
            self._uploading.cancel()

    async def _make_changes(self) -> None:
        reason = await self.read_only()
        if reason:
            log.warning("documents cannot be changed: %s", reason)
        loop = asyncio.get_running_loop()
        while True:
            try:
                if await loop.run_in_executor(self._shelves.writer, self.uploads.make):
                    await self.follow()
            except ResourceError as error:
                log.warning("changes of documents wait: %s", error)
                # A model behind an address is asked again at the next look.
                if not isinstance(error, RetrievalError):
                    self.uploads.wake_in(_RETRY_S)
            except Exception:
                log.exception("changes of documents could not be made")
            await self.uploads.wait()

    async def read_only(self) -> str:
        """Why documents cannot be changed; "" if they can, or if the server has no keys, without
        which nothing is changed.
        """
        if not self.settings.knows_people:
            return ""
        return await asyncio.to_thread(_read_only, self.settings.index)

    @property
    def in_use(self) -> str:
        """The version of the index that is open; "" if none is."""
        pipeline = self.pipeline
        return "" if pipeline is None else pipeline.index_version

    def look(self) -> None:
        """Switch to an update that another process has written, if there is one."""
        folder = self.settings.index
        version = _version_in(folder)
        seen = (os.path.realpath(folder), version, _rights_in(folder))
        if seen == self._seen and not self._lacks_files:
            return
        self._seen = seen
        try:
            if self.name:
                self.check()
            self.count_open()
            if version:
                self.replace()
            elif self.in_use:
                log.warning("%s holds no readable index; the one in use stays", folder)
        except BaseException:
            self._seen = None
            raise

    def check(self) -> None:
        """Look whether the index on disk is complete, without opening it."""
        folder = self.settings.index
        try:
            manifest = Manifest.read(folder)
            manifest.verify(folder, read_bytes=0)
        except (RagError, OSError) as error:
            if not self._lacks_files:
                log.error("the shelf %s cannot be used: %s", self.name, error)
            self.fault = str(error)
            # It may be copied just now.
            self._lacks_files = True
            return
        self.fault = ""
        self._lacks_files = False
        self.version = manifest.version
        self.n_passages = int(manifest.stage("passages").output["count"])
        try:
            rights = DocumentRights(folder, Documents(folder / manifest.data / "passages"))
            readable = rights.readable(frozenset())
        except RagError:
            self.n_passages = 0
            return
        if readable is not None:
            self.n_passages = len(readable.rows)

    def count_open(self) -> int:
        """Count the passages that everybody may read, in an index that is open."""
        pipeline = self.pipeline
        if pipeline is not None:
            try:
                self.n_passages = pipeline.for_groups(frozenset()).n_passages
            except RightsError:
                self.n_passages = 0
        self._shelves.metrics.count_passages(self.n_passages, self.name)
        return self.n_passages


class Shelves:
    """The shelves of a server by their names, of which those asked most recently are open.

    Models are shared: an index is opened with those that open ones have loaded.

    Args:
        open_pipeline: opens the first index.

    Attributes:
        writer: the thread on which indexes are written, one after another: they share an encoder.
    """

    def __init__(
        self, settings: ServeSettings, open_pipeline: OpenPipeline, metrics: ServerMetrics
    ) -> None:
        self.metrics = metrics
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="rag-write")
        self._opener = ThreadPoolExecutor(2, thread_name_prefix="rag-open")
        # Another thread has the encoder of the questions.
        self.open_encoder = cache(self._load_encoder)
        self._settings = settings
        self._open_pipeline = open_pipeline
        self._is_followed = True
        # The shelf that was used last comes last.
        self._recent: dict[Shelf, None] = {}
        self._lock = threading.Lock()
        self._shelves = {}
        for name, folder in settings.named_folders().items():
            self._shelves[name] = self._shelf(name, folder)

    def __iter__(self) -> Iterator[Shelf]:
        return iter(list(self._shelves.values()))

    def __getitem__(self, name: str) -> Shelf:
        shelf = self._shelves.get(name)
        if shelf is None:
            message = f"there is no shelf {name[:100]!r}"
            raise ApiError(404, "shelf_not_found", message, hint=_LISTED)
        return shelf

    def _shelf(self, name: str, folder: Path) -> Shelf:
        # The working directory may change.
        settings = self._settings.model_copy(update={"index": folder.absolute()})
        return Shelf(settings, self, name)

    def _load_encoder(self, identity: EncoderIdentity) -> PassageEncoder:
        from retrievers.encoders.open import load_like

        settings = self._settings
        return load_like(identity, settings.index_encoder, precision=settings.precision)

    def scope(self, asked: str | Sequence[str] | None, groups: Groups) -> Scope:
        """The scope of a person's request that asks these shelves; None: all.

        Raises:
            ApiError: 404: there is no such shelf.
        """
        if isinstance(asked, str):
            asked = [asked]
        names = tuple(self._shelves if asked is None else sorted(set(asked)))
        for name in names:
            self[name]
        if not names:
            raise ApiError(404, "shelf_not_found", "this server has no shelf yet", hint=_LISTED)
        return Scope(names, asked is not None or len(names) == 1, groups)

    def load(self) -> int:
        """Open the first index that can be opened, if there is a shelf yet.

        Returns:
            How many questions its reader takes at a time in another process; 0 if it reads here.

        Raises:
            RagError: none can be opened.
        """
        failures = list[RagError]()
        for shelf in self:
            if shelf.name:
                shelf.check()
        for shelf in self:
            try:
                shelf.open()
            except RagError as error:
                failures.append(error)
                continue
            with shelf.lease() as pipeline:
                return 0 if pipeline.reader is None else pipeline.reader.max_concurrent
        if failures:
            raise failures[0]
        log.warning("%s holds no index yet", self._settings.shelves)
        return 0

    async def in_background(self, function: Callable[..., Result], *args: object) -> Result:
        """Call a function that may open an index, on a thread that no short function needs."""
        return await asyncio.get_running_loop().run_in_executor(self._opener, function, *args)

    def start(self) -> None:
        """Begin to make the changes that wait."""
        for shelf in self:
            shelf.start()

    def open(self, shelf: Shelf, anew: bool = False) -> Pipeline:
        """Open the index of a shelf with the models that are loaded, or with new models if `anew`.

        Raises:
            RagError: the index or a model cannot be used.
        """
        with self._lock:
            others = [other.pipeline for other in (shelf, *reversed(self._recent))]
        loaded = [other for other in others if other is not None]
        if loaded and not anew:
            pipeline = open_sharing_models(shelf.settings, loaded)
        else:
            pipeline = self._open_pipeline(shelf.settings)
        pipeline.shelf = shelf.name
        return pipeline

    def touch(self, shelf: Shelf) -> None:
        """Note that a shelf is used, and close those that were used least recently."""
        with self._lock:
            self._recent.pop(shelf, None)
            self._recent[shelf] = None
            surplus = list(self._recent)[: -self._settings.open_indexes]
            for least_recent in surplus:
                del self._recent[least_recent]
        for least_recent in surplus:
            least_recent.close()

    async def look(self) -> None:
        """Follow the folders: take up new shelves and new versions, let go what is gone."""
        try:
            folders = await asyncio.to_thread(self._settings.named_folders)
        except OSError as error:
            # Such as a file system that is away for a while.
            if self._is_followed:
                log.warning("the folder of shelves cannot be read: %s", error)
            self._is_followed = False
            return
        self._is_followed = True
        for name in self._shelves.keys() - folders.keys():
            await self._remove(name)
        for name in folders.keys() - self._shelves.keys():
            shelf = self._shelf(name, folders[name])
            await asyncio.to_thread(shelf.check)
            self._shelves[name] = shelf
            shelf.start()
            log.info("a new shelf: %s", name)
        self._shelves = dict(sorted(self._shelves.items()))
        for shelf in self:
            try:
                await self.in_background(shelf.look)
            except Exception:
                log.exception("updates of the shelf %s could not be looked for", shelf.name)

    async def _remove(self, name: str) -> None:
        shelf = self._shelves.pop(name)
        with self._lock:
            self._recent.pop(shelf, None)
        shelf.stop()
        await self.in_background(shelf.close, "it is gone")
        self.metrics.shelf_removed(name)
        log.warning("the shelf %s is gone", name)

    async def reload(self) -> None:
        """Open models anew with the index that was used last; others are opened again when asked,
        also those that could not be opened.
        """
        for shelf in self:
            if shelf.name:
                await self.in_background(shelf.check)
        with self._lock:
            recent = list(self._recent)
        is_done = bool(recent) and await self.in_background(recent[-1].replace, True)
        if is_done:
            for shelf in recent[:-1]:
                await self.in_background(shelf.close)

    def close(self) -> None:
        """Close all indexes, once nothing in flight uses them."""
        for shelf in self:
            shelf.stop()
            shelf.close("the server is shutting down")


def open_index(settings: ServeSettings) -> Index:
    """Open the index of the settings; if these name a cluster, its vectors are searched there.

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

    Raises:
        RagError: the index or a model cannot be used.
    """
    from rag.pipeline import Pipeline

    options = settings.model_dump(include=set(OpenSettings.model_fields))
    index = open_index(settings)
    try:
        pipeline = Pipeline.open(index, **options)
        reader = pipeline.reader
        if reader is None or reader.max_concurrent:
            # A model at an address is not asked: its outage must not stop the search.
            pipeline.retrieve("Is everything loaded?")
        else:
            pipeline.ask("Is everything loaded?")
    except BaseException:
        index.close()
        raise
    return pipeline


def open_sharing_models(settings: ServeSettings, others: Sequence[Pipeline]) -> Pipeline:
    """Open the pipeline of the settings' index with models that other pipelines have loaded.

    Raises:
        RagError: the index, or a model that it alone needs, cannot be used.
    """
    from rag.pipeline import Pipeline

    index = open_index(settings)
    try:
        for other in others:
            if other.index.parts == index.parts:
                with suppress(MismatchedArtifactError):
                    return other.with_index(index)
        first = others[0]
        models: dict[str, object] = {"reader": first.reader or False}
        identity = index.encoder_identity
        for other in others:
            stored = other.index.encoder_identity
            if identity is not None and stored is not None and not identity.differences(stored):
                models["index_encoder"] = other.retriever.encoder
        retriever, reader = open_models(index, settings.model_copy(update=models), reads=True)
        return Pipeline(index, retriever, reader, shares_models_with=first)
    except BaseException:
        index.close()
        raise


def _read_only(folder: Path) -> str:
    if not folder.exists() or os.access(folder, os.W_OK):
        return ""
    return "its folder is read-only for this server"


def _rights_in(folder: Path) -> str:
    """The version of an index's rights; "unreadable" if that cannot be told."""
    try:
        return rights_version(folder)
    except RightsError:
        return "unreadable"


def _version_in(folder: Path) -> str:
    """The version of the index in a folder; "" if its manifest cannot be read."""
    try:
        return index_version(folder)
    except (RagError, OSError):  # also of a file system that is away for a while
        return ""
