"""The desk: takes questions in, has them answered in batches, and knows whether the server is ready."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from rag.core.errors import RagError, RetrievalError
from rag.core.log import get_logger
from rag.core.progress import StageTimer
from rag.core.types import AnswerSet, Hit, Passage
from serve.batching import BatcherClosed, Finished, MicroBatcher, QueueFull
from serve.errors import ApiError
from serve.metrics import ServerMetrics
from serve.service import AnswerService, OpenService, ServiceHolder
from serve.settings import ServeSettings

__all__ = ["Desk", "Job"]

log = get_logger(__name__)
State = Literal["loading", "ready", "failed", "stopping"]


class Job(NamedTuple):
    """What is to be done with a question; only equal jobs share a batch."""

    kind: Literal["ask", "retrieve"]
    top_k: int
    n_best: int = 0


class Desk:
    """Everything an application keeps while it runs.

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
        self._given, self._reload_lock = service, asyncio.Lock()
        self.batcher: MicroBatcher[str, dict[str, Any]] = MicroBatcher(
            self._run,
            max_size=settings.batch_max_size,
            max_wait_s=settings.batch_max_wait_ms / 1000.0,
            queue_size=settings.queue_size,
            on_batch=self.metrics.batch_finished,
        )

    async def load(self) -> None:
        """Open the service and become ready; on failure the state is "failed" and `load_error` says why."""
        try:
            service = self._given
            if service is None:
                service = await asyncio.to_thread(self._open_service, self.settings)
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
        """Open the index again, aside, and put it in the place of the one in use.

        Requests that are running finish on the old one, which is closed after the last of them. For that time
        both are in memory.

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
                service = await asyncio.to_thread(self._open_service, self.settings)
            except Exception:
                log.exception("reload failed", extra={"index": str(self.settings.index)})
                raise ApiError(
                    500,
                    "reload_failed",
                    "the index could not be opened; the one in use stays",
                    hint="the server's log says what is wrong with it",
                ) from None
            previous = await self._install(service)
        return {
            "index_version": service.index_version,
            "previous_index_version": previous,
            "n_passages": service.n_passages,
        }

    async def _install(self, service: AnswerService) -> str | None:
        previous = await asyncio.to_thread(self.holder.swap, service)
        self.metrics.index_changed(service.index_version, service.n_passages)
        log.info(
            "index in use", extra={"index_version": service.index_version, "previous_index_version": previous}
        )
        return previous

    async def close(self) -> None:
        """Finish what was accepted, then release the index."""
        self.state = "stopping"
        if not await self.batcher.close(self.settings.drain_timeout_s):
            log.warning(
                "accepted questions were not finished", extra={"after_s": self.settings.drain_timeout_s}
            )
        await asyncio.to_thread(self.holder.swap, None)

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

    async def submit(self, job: Job, questions: list[str]) -> list[dict[str, Any]]:
        """Results of the questions as JSON values, in order; timings include the wait in the queue.

        Raises:
            ApiError: 503 if not ready or full.
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
        except RetrievalError:
            self.metrics.rejected.labels("reader_failed").inc()
            log.exception("a question could not be answered")
            raise ApiError(
                502,
                "reader_failed",
                "the model that reads the passages did not give an answer",
                hint="try again in a moment; the server's log has the reason under this request id",
            ) from None
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

        return await asyncio.to_thread(look_up)

    def _stopping(self) -> ApiError:
        return self._unavailable("shutting_down", "the server is shutting down", "ask another instance", 5)

    def _unavailable(self, code: str, message: str, hint: str, retry_after_s: float) -> ApiError:
        self.metrics.rejected.labels(code).inc()
        seconds = min(60, max(1, math.ceil(retry_after_s)))
        return ApiError(503, code, message, hint=hint, headers={"Retry-After": str(seconds)})

    @staticmethod
    def _with_wait(finished: Finished[dict[str, Any]]) -> dict[str, Any]:
        timings_ms = {"queue": round(finished.wait_s * 1000.0, 3), **finished.value["timings_ms"]}
        return {**finished.value, "timings_ms": timings_ms}

    def _run(self, key: Hashable, questions: list[str]) -> list[dict[str, Any]]:
        """One batch, on the worker thread."""
        assert isinstance(key, Job)
        with self.holder.lease() as service:
            if key.kind == "ask":
                answer_sets = service.ask(questions, top_k=key.top_k, n_best=key.n_best)
                self._count_answers(answer_sets)
                return [answer_set.to_json() for answer_set in answer_sets]
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


def _hit_json(hit: Hit, passage: Passage) -> dict[str, Any]:
    shown = {"passage_id": passage.id, "title": passage.title, "text": passage.text}
    first = {} if hit.first_stage is None else {"first_stage": asdict(hit.first_stage)}
    return {**shown, "score": float(hit.score), **first}
