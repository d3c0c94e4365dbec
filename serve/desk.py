"""The desk: accepts questions, has them answered in batches, and tracks whether the server is ready."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import math
import platform
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, TypeVar

from rag.core.errors import RagError, ReaderError, RetrievalError
from rag.core.log import get_logger
from rag.core.progress import StageTimer
from rag.core.types import AnswerSet, Hit, Passage
from readers.follow_up import Turn
from serve.batching import BatcherClosed, Finished, ItemFailed, MicroBatcher, QueueFull
from serve.errors import ApiError, shutting_down
from serve.metrics import ServerMetrics
from serve.service import AnswerService, OpenService, ServiceHolder
from serve.settings import ServeSettings

log = get_logger(__name__)
State = Literal["loading", "ready", "failed", "stopping"]
Made = TypeVar("Made")
_FAILURES: tuple[tuple[type[Exception], tuple[int, str, str]], ...] = (
    (ReaderError, (502, "reader_failed", "the model that reads the passages did not give an answer")),
    (RetrievalError, (500, "retrieval_failed", "the search for passages failed")),
    (Exception, (500, "internal_error", "the server failed to answer this request")),
)


class Job(NamedTuple):
    """The task for a question; only questions with equal jobs share a batch.

    `turns` are the earlier questions and answers of a conversation, for "rephrase".
    """

    kind: Literal["ask", "retrieve", "rephrase"]
    top_k: int = 0
    n_best: int = 0
    turns: tuple[Turn, ...] = ()


class Desk:
    """State of a running application: the service in use, the queue, and readiness.

    Args:
        open_service: opens the index at start and at each reload; runs on a thread.
    """

    def __init__(
        self, settings: ServeSettings, open_service: OpenService, service: AnswerService | None
    ) -> None:
        self.settings, self._open_service = settings, open_service
        self.holder = ServiceHolder()
        self.metrics = ServerMetrics(queue_depth=lambda: self.batcher.depth)
        self.state: State = "loading"
        self.load_error: Exception | None = None
        self.created_s = int(time.time())
        self._given, self._reload_lock = service, asyncio.Lock()
        self._threads, self._calls = ThreadPoolExecutor(thread_name_prefix="rag-desk"), set[Future[Any]]()
        self._is_drained = False
        self.batcher: MicroBatcher[str, dict[str, Any]] = MicroBatcher(
            self._run,
            max_size=settings.batch_max_size,
            max_wait_s=settings.batch_max_wait_ms / 1000.0,
            queue_size=settings.queue_size,
            on_batch=self.metrics.batch_finished,
        )

    async def load(self) -> None:
        """Open the service and become ready; on failure the state is "failed" and `load_error` the reason."""
        try:
            service = self._given
            if service is None:
                service = await self.in_thread(self._open_service, self.settings)
        except Exception as error:
            self.state, self.load_error = "failed", error
            log.error(
                "the index could not be opened: %s", error,
                exc_info=not isinstance(error, RagError), extra={"index": str(self.settings.index)},
            )  # fmt: skip
            return
        await self._install(service)
        if self.state == "loading":
            self.state = "ready"

    async def reload(self) -> dict[str, Any]:
        """Open the index again in the background, then replace the one in use.

        Running requests finish on the old index, which is closed after the last of them; until then both are
        in memory.

        Raises:
            ApiError: 409 if a reload is under way, 500 if the index could not be opened (the old one stays).
        """
        if self._reload_lock.locked():
            raise ApiError(
                409, "reload_in_progress", "a reload is under way already", hint="wait for its end"
            )
        async with self._reload_lock:
            self.require_ready()
            try:
                service = await self.in_thread(self._open_service, self.settings)
            except Exception:
                log.exception("reload failed", extra={"index": str(self.settings.index)})
                raise ApiError(
                    500,
                    "reload_failed",
                    "the index could not be opened; the one in use stays",
                    hint="the server's log has the reason",
                ) from None
            previous = await self._install(service)
        return {
            "index_version": service.index_version,
            "previous_index_version": previous,
            "n_passages": service.n_passages,
        }

    async def _install(self, service: AnswerService) -> str | None:
        previous = await self.in_thread(self.holder.swap, service)
        self.metrics.index_changed(service.index_version, service.n_passages)
        log.info(
            "index in use", extra={"index_version": service.index_version, "previous_index_version": previous}
        )
        if previous is not None:
            await self.in_thread(_release_memory)
        return previous

    async def close(self) -> None:
        """Refuse new questions, finish the accepted ones, release the index; a second call does nothing."""
        if self.batcher.is_closing:
            return
        self.state = "stopping"
        self._is_drained = await self.batcher.close(self.settings.drain_timeout_s)
        if not self._is_drained:
            log.warning(
                "accepted questions were not finished", extra={"after_s": self.settings.drain_timeout_s}
            )
        await self.in_thread(self.holder.swap, None)

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

    def require_ready(self) -> AnswerService:
        """The service in use.

        Raises:
            ApiError: 503 while loading, after a failed load, or while stopping.
        """
        service = self.holder.current
        if self.state == "stopping" or self.batcher.is_closing:
            raise self._stopping()
        if self.state == "failed":
            raise self._unavailable(
                "load_failed", "the index could not be opened", "see the server's log", 30
            )
        if service is None or self.state == "loading":
            raise self._unavailable(
                "not_ready", "the index is still being loaded", "try again in a moment", 2
            )
        return service

    async def submit(self, job: Job, questions: list[str], request_id: str) -> list[dict[str, Any]]:
        """Results of the questions as JSON values, in order; timings include the wait in the queue.

        Raises:
            ApiError: 503 if not ready or full; 500 or 502 if a question fails, with its number.
        """
        self.require_ready()
        try:
            finished = await self.batcher.submit(job, questions)
        except QueueFull as full:
            raise self._unavailable(
                "overloaded",
                "too many questions are waiting",
                "try again after the time in Retry-After",
                full.retry_after_s,
            ) from None
        except ItemFailed as failed:
            raise self._failed(failed, questions, request_id) from None
        except BatcherClosed:
            raise self._stopping() from None
        return [self._with_wait(result) for result in finished]

    async def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None.

        Raises:
            ApiError: 503 if not ready.
        """
        self.require_ready()

        def look_up() -> Passage | None:
            with self.holder.lease() as service:
                return service.passage(passage_id)

        return await self.in_thread(look_up)

    def _stopping(self) -> ApiError:
        error = shutting_down()
        self.metrics.rejected.labels(error.code).inc()
        return error

    def _failed(self, failed: ItemFailed, questions: list[str], request_id: str) -> ApiError:
        """Log the reason, without the question's text, and tell the client which question failed."""
        cause, number = failed.__cause__, failed.number
        status, code, message = next(failure for kind, failure in _FAILURES if isinstance(cause, kind))
        if isinstance(cause, RetrievalError):
            self.metrics.rejected.labels(code).inc()
        fields = {"request_id": request_id, "code": code, "question_number": number}
        log.error("a question could not be answered", exc_info=cause, extra=fields)
        which = f"questions.{number} ({questions[number][:100]!r}): " if len(questions) > 1 else ""
        hint = "try again in a moment; the server's log has the reason under this request id"
        return ApiError(status, code, which + message, hint=hint)

    def _unavailable(self, code: str, message: str, hint: str, retry_after_s: float) -> ApiError:
        self.metrics.rejected.labels(code).inc()
        seconds = min(60, max(1, math.ceil(retry_after_s)))
        return ApiError(503, code, message, hint=hint, headers={"Retry-After": str(seconds)})

    @staticmethod
    def _with_wait(finished: Finished[dict[str, Any]]) -> dict[str, Any]:
        timings_ms = {"queue": round(finished.wait_s * 1000.0, 3), **finished.value["timings_ms"]}
        return {**finished.value, "timings_ms": timings_ms}

    def _run(self, key: Hashable, questions: list[str]) -> list[dict[str, Any] | BaseException]:
        """Run one batch, on the worker thread; a question that failed has an error as its result."""
        assert isinstance(key, Job)
        with self.holder.lease() as service:
            if key.kind == "ask":
                answer_sets = service.ask(questions, top_k=key.top_k, n_best=key.n_best)
                self._count_answers(answer_sets)
                return [ReaderError(one.failure) if one.failure else one.to_json() for one in answer_sets]
            if key.kind == "rephrase":
                shared = {"index_version": service.index_version, "timings_ms": {}}
                return [{"question": service.rephrase(text, key.turns), **shared} for text in questions]
            timer = StageTimer()
            with timer("retrieve"):
                found = service.retrieve(questions, key.top_k, timer=timer)
            self.metrics.stages_finished(timer.timings_ms)
            timings_ms = {stage: round(value, 3) for stage, value in timer.timings_ms.items()}
            self.metrics.questions.labels("retrieve").inc(len(questions))
            shared = {"index_version": service.index_version, "timings_ms": timings_ms}
            return [
                {"question": question, "hits": [_hit_json(*pair) for pair in pairs], **shared}
                for question, pairs in zip(questions, found, strict=True)
            ]

    def _count_answers(self, answer_sets: list[AnswerSet]) -> None:
        self.metrics.questions.labels("ask").inc(len(answer_sets))
        self.metrics.no_answers.inc(sum(not answer_set.is_answered for answer_set in answer_sets))
        if answer_sets:
            self.metrics.stages_finished(answer_sets[0].timings_ms)


def _release_memory() -> None:
    """Return the memory of the replaced index and models to the system; glibc would keep most of it."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def passage_json(passage: Passage) -> dict[str, Any]:
    """The public JSON shape of a passage."""
    shown = passage.to_json()
    return {"passage_id": shown.pop("id"), **shown}


def _hit_json(hit: Hit, passage: Passage) -> dict[str, Any]:
    first = {} if hit.first_stage is None else {"first_stage": asdict(hit.first_stage)}
    return {**passage_json(passage), "score": float(hit.score), **first}
