"""The engine accepts questions, has them answered in batches, and tracks whether the server is ready."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from rag.core.errors import ConfigError, RagError, ReaderError, RetrievalError
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME, read_manifest, version_of
from rag.data.filters import FilterError
from serve.batching import BatcherClosed, Finished, ItemFailed, MicroBatcher, QueueFull
from serve.errors import ApiError, invalid_request, shutting_down
from serve.jobs import Job, JobRunner, look_up, release_memory
from serve.metrics import ServerMetrics
from serve.rates import KeyRates
from serve.service import AnswerService, OpenService, ServiceHolder, reopened
from serve.settings import ServeSettings
from serve.siblings import Siblings, after

log = get_logger(__name__)
State = Literal["loading", "ready", "failed", "stopping"]
Made = TypeVar("Made")
_Batcher = MicroBatcher[str, dict[str, Any]]
_FAILURES: tuple[tuple[type[Exception], tuple[int, str, str]], ...] = (
    (ReaderError, (502, "reader_failed", "the model that reads the passages did not give an answer")),
    (RetrievalError, (500, "retrieval_failed", "the search for passages failed")),
    (Exception, (500, "internal_error", "the server failed to answer this request")),
)


class Engine:
    """State of a running application: the service of each index, the queue, and readiness.

    Args:
        open_service: opens an index at start and at each reload; runs on a thread.
        service: an open service for the default index.
        siblings: the server's other processes, if there are any.
    """

    def __init__(
        self,
        settings: ServeSettings,
        open_service: OpenService,
        service: AnswerService | None,
        siblings: Siblings | None = None,
    ) -> None:
        self.settings, self._open_service, self._siblings = settings, open_service, siblings
        self.holders = {name: ServiceHolder() for name in settings.indexes}
        self.default = next(iter(self.holders))
        self.metrics = ServerMetrics(queue_depth=lambda: sum(one.depth for one in self._batchers))
        self.state: State = "loading"
        self.load_error: Exception | None = None
        self.created_s = int(time.time())
        self._given = service
        shared = None if siblings is None else siblings.place.parent / "rates"
        limit, keys = settings.questions_per_minute, settings.api_keys
        self._rates = None if limit is None else KeyRates(limit, keys, shared)
        self.writers: dict[str, Any] = {}  # of documents, by index; see `serve.document_writer`
        self._reload_locks = {name: asyncio.Lock() for name in self.holders}
        self._reloading, self._reload_waits = asyncio.Lock(), False
        self._threads, self._calls = ThreadPoolExecutor(thread_name_prefix="rag-engine"), set[Future[Any]]()
        self._is_drained = False
        self.batcher = self._batcher(settings.batch_max_size, workers=1)
        self._readings: _Batcher | None = None  # where a model elsewhere reads, which needs no core here

    def _batcher(self, max_size: int, workers: int) -> _Batcher:
        return MicroBatcher(
            JobRunner(self.holders, self.metrics),
            max_size=max_size,
            max_wait_s=self.settings.batch_max_wait_ms / 1000.0,
            queue_size=self.settings.queue_size,
            workers=workers,
            on_batch=self.metrics.batch_finished,
        )

    @property
    def _batchers(self) -> list[_Batcher]:
        return [one for one in (self.batcher, self._readings) if one is not None]

    async def load(self) -> None:
        """Open all services and become ready; on failure the state is "failed", `load_error` the reason."""
        for name in self.holders:
            try:
                service = self._given if name == self.default else None
                if service is None:
                    service = await self.in_thread(self._open_service, self.settings.only(name))
            except Exception as error:
                self.state, self.load_error = "failed", error
                log.error(
                    "the index could not be opened: %s", error,
                    exc_info=not isinstance(error, RagError), extra=self._fields(name),
                )  # fmt: skip
                return
            await self._install(name, service)
            if service.reads_at_once and self._readings is None:  # all indexes have the same reader
                self._readings = self._batcher(1, workers=service.reads_at_once)
                self._readings.start()
        if self.state == "loading":
            self.state = "ready"

    def _fields(self, name: str) -> dict[str, str]:
        """The index, for the log."""
        return {"index": name, "folder": str(self.settings.indexes[name])}

    def index_name(self, given: str | None) -> str:
        """The name of an index that a request gives, or the default's.

        Raises:
            ApiError: 404; there is no such index.
        """
        if given is not None and given not in self.holders:
            raise ApiError(
                404,
                "index_not_found",
                f"there is no index {given[:100]!r}",
                hint=f"the indexes of this server are {', '.join(self.holders)}",
            )
        return given or self.default

    async def reload(self, name: str, *, waits: bool = False) -> dict[str, Any]:
        """Open this index again in the background, then replace the one in use; here and in all siblings.

        Running requests finish on the old index, which is closed after the last of them; until then both are
        in memory.

        Raises:
            ApiError: 409 if a reload is under way and this one does not wait for its end; 500 if the index
                could not be opened (the old one stays).
        """
        if self._reload_locks[name].locked() and not waits:
            raise ApiError(
                409, "reload_in_progress", "a reload is under way already", hint="wait for its end"
            )
        reloaded = await self._reload_here(name)
        if failed := 0 if self._siblings is None else await self._siblings.tell("reload", name):
            raise ApiError(
                500,
                "reload_failed",
                f"{failed} of {self.settings.workers} workers could not open the index and keep theirs",
                hint="the server's log has the reason",
            )
        return reloaded

    async def reload_all(self) -> None:
        """Reload every index, after a call that is under way; while one call waits for that, it is enough."""
        if self._reload_waits:
            return
        self._reload_waits = True
        async with self._reloading:
            self._reload_waits = False  # what changes from here on is for the next call
            for name in self.holders:
                try:
                    await self.reload(name, waits=True)
                except ApiError as error:
                    log.error("reload: %s", error.message, extra={"index": name})

    async def _reload_here(self, name: str) -> dict[str, Any]:
        async with self._reload_locks[name]:
            self.require_ready(name)
            try:
                service = await self.in_thread(self._open_service, self.settings.only(name))
            except Exception:
                log.exception("reload failed", extra=self._fields(name))
                raise ApiError(
                    500,
                    "reload_failed",
                    "the index could not be opened; the one in use stays",
                    hint="the server's log has the reason",
                ) from None
            previous = await self._install(name, service)
        return {
            "index_version": service.index_version,
            "previous_index_version": previous,
            "n_passages": service.n_passages,
        }

    async def listen_to_siblings(self) -> asyncio.Server | None:
        """Serve requests of the server's other processes until the result is closed; None without others."""
        if self._siblings is None:
            return None

        async def metrics(_: str) -> bytes:
            return self.metrics.render()

        return await self._siblings.listen(
            {"metrics": metrics, "reload": after(self._reload_here), "refresh": after(self._refresh_here)}
        )

    async def all_metrics(self) -> bytes:
        """The metrics in Prometheus' text format, of all siblings if there are any."""
        return self.metrics.render() if self._siblings is None else await self._siblings.metrics()

    async def refresh(self, name: str) -> None:
        """Switch to the version of an index that is on disk now, with the loaded models; all siblings do too.

        On failure the version in use stays, and the log has the reason.
        """
        await self._refresh_here(name)
        if self._siblings is not None:
            await self._siblings.tell("refresh", name)

    async def _refresh_here(self, name: str) -> None:
        async with self._reload_locks[name]:
            service = self.holders[name].current
            if service is None or self.state == "stopping":
                return
            try:
                newer = await self.in_thread(reopened, service)
            except Exception:
                log.exception("an update of the index could not be opened", extra=self._fields(name))
                return
            if newer is not None:
                await self._install(name, newer)

    async def follow_updates(self) -> None:
        """Look for updates that other processes write, and switch to them, until cancelled."""
        seen: dict[str, int] = {}
        while pause_s := self.settings.follow_updates_s:
            await asyncio.sleep(pause_s)
            for name, folder in self.settings.indexes.items():
                service = self.holders[name].current
                if service is None or self.state != "ready":
                    continue
                with suppress(OSError):
                    changed_ns = (Path(folder) / MANIFEST_NAME).stat().st_mtime_ns
                    if seen.get(name) != changed_ns and _version_in(folder) != service.index_version:
                        await self._refresh_here(name)
                    seen[name] = changed_ns

    async def _install(self, name: str, service: AnswerService) -> str | None:
        previous = await self.in_thread(self.holders[name].swap, service)
        self.metrics.index_changed(name, service.index_version, service.n_passages)
        versions = {"index_version": service.index_version, "previous_index_version": previous}
        log.info("index in use", extra={**self._fields(name), **versions})
        if previous is not None:
            await self.in_thread(release_memory)
        return previous

    async def close(self) -> None:
        """Refuse new questions, finish the accepted ones, release the indexes; a second call does nothing."""
        if self.batcher.is_closing:
            return
        self.state = "stopping"
        closing = (one.close(self.settings.drain_timeout_s) for one in self._batchers)
        self._is_drained = all(await asyncio.gather(*closing))
        if not self._is_drained:
            log.warning(
                "accepted questions were not finished", extra={"after_s": self.settings.drain_timeout_s}
            )
        for holder in self.holders.values():
            await self.in_thread(holder.swap, None)

    @property
    def is_at_rest(self) -> bool:
        """Whether it is closed and all its threads are idle."""
        return self._is_drained and not self._calls

    async def in_thread(self, function: Callable[..., Made], *args: object) -> Made:
        """Call `function` on a thread; it runs to its end and is tracked even if the caller is cancelled."""
        call = self._threads.submit(function, *args)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(call)

    def require_ready(self, name: str) -> AnswerService:
        """The service of this index.

        Raises:
            ApiError: 503 while loading, after a failed load, or while stopping.
        """
        service = self.holders[name].current
        if self.state == "stopping" or self.batcher.is_closing:
            raise self._stopping()
        if self.state == "failed":
            raise self._refused(
                503, "load_failed", "the index could not be opened", 30, hint="see the server's log"
            )
        if service is None or self.state == "loading":
            raise self._refused(503, "not_ready", "the index is still being loaded", 2)
        return service

    def charge(self, key: str | None, job: Job, questions: int) -> None:
        """Count the questions of an API key; a batch of texts to encode counts as one question.

        Raises:
            ApiError: 429; the key has asked too much. 503 if not ready.
        """
        self.require_ready(job.index)
        if key is None:
            return
        if job.kind == "embed":
            questions = math.ceil(questions / self.batcher.max_size)
        if self._rates is not None and (wait_s := self._rates.charge(key, questions)):
            raise self._refused(
                429,
                "rate_limited",
                f"this API key may ask {self.settings.questions_per_minute} questions per minute",
                wait_s,
            )
        self.metrics.key_questions.labels(key[:8]).inc(questions)

    async def submit(self, job: Job, questions: list[str], request_id: str) -> list[dict[str, Any]]:
        """Results of the questions as JSON values, in order; timings include the wait in the queue.

        Raises:
            ApiError: 503 if not ready or full; 500 or 502 if a question fails, with its number.
        """
        self.require_ready(job.index)
        batcher = self._readings if job.kind == "ask" and self._readings else self.batcher
        step = batcher.max_size if job.kind == "embed" else len(questions)  # others' turn in between
        finished, start = list[Finished[dict[str, Any]]](), 0
        try:
            for start in range(0, len(questions), step):
                finished += await batcher.submit(job, questions[start : start + step])
        except QueueFull as full:
            raise self._refused(
                503, "overloaded", "too many questions are waiting", full.retry_after_s
            ) from None
        except ItemFailed as failed:
            raise self._failed(failed, job, questions, start + failed.number, request_id) from None
        except BatcherClosed:
            raise self._stopping() from None
        return [self._with_wait(result) for result in finished]

    async def passage(self, passage_id: str, name: str, around: int = 0) -> dict[str, Any] | None:
        """The passage of this index with this id as JSON, with those around it if they are wanted, or None.

        Raises:
            ApiError: 503 if not ready.
        """
        self.require_ready(name)
        return await self.in_thread(look_up, self.holders[name], passage_id, around)

    def _stopping(self) -> ApiError:
        error = shutting_down()
        self.metrics.rejected.labels(error.code).inc()
        return error

    def _failed(
        self, failed: ItemFailed, job: Job, questions: list[str], number: int, request_id: str
    ) -> ApiError:
        """Log the reason, without the question's text, and tell the client which question failed."""
        cause = failed.__cause__
        if isinstance(cause, FilterError):  # the client's mistake, which only the index could show
            return invalid_request(cause.message, cause.hint)
        if job.kind == "embed" and isinstance(cause, ConfigError):
            log.warning("a text could not be encoded: %s", cause, extra={"request_id": request_id})
            hint = "an encoder with one vector per text makes them; a reader's own one, of questions alone"
            return invalid_request(f"this index makes no vectors of input_type {job.side!r}", hint)
        status, code, message = next(failure for kind, failure in _FAILURES if isinstance(cause, kind))
        if isinstance(cause, RetrievalError):
            self.metrics.rejected.labels(code).inc()
        fields = {"request_id": request_id, "code": code, "question_number": number}
        log.error("a question could not be answered", exc_info=cause, extra=fields)
        which = f"questions.{number} ({questions[number][:100]!r}): " if len(questions) > 1 else ""
        hint = "try again in a moment; the server's log has the reason under this request id"
        return ApiError(status, code, which + message, hint=hint)

    def _refused(
        self, status: int, code: str, message: str, retry_after_s: float,
        hint: str = "try again after the time in Retry-After",
    ) -> ApiError:  # fmt: skip
        self.metrics.rejected.labels(code).inc()
        seconds = min(60, max(1, math.ceil(retry_after_s)))
        return ApiError(status, code, message, hint=hint, headers={"Retry-After": str(seconds)})

    @staticmethod
    def _with_wait(finished: Finished[dict[str, Any]]) -> dict[str, Any]:
        timings_ms = {"queue": round(finished.wait_s * 1000.0, 3), **finished.value["timings_ms"]}
        return {**finished.value, "timings_ms": timings_ms}


def _version_in(folder: Path) -> str:
    """The version of the index in a folder; "" if its manifest cannot be read."""
    try:
        return version_of(read_manifest(folder))
    except RagError:
        return ""
