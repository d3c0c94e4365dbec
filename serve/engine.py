"""The engine accepts questions, has them answered in batches, and tracks whether the server is
ready.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from starlette.requests import Request

from rag.core.errors import RagError, ReaderError, RetrievalError
from rag.core.log import get_logger
from rag.core.types import AnswerSet
from serve.batching import ItemFailed, MicroBatcher
from serve.conversions import Conversions
from serve.errors import ApiError, answer_to, invalid_request, refused, shutting_down, timed_out
from serve.jobs import Ask, Job, Result, Served
from serve.metrics import ServerMetrics
from serve.settings import ServeSettings
from serve.shelves import OpenPipeline, Scope, Shelf, Shelves
from serve.together import Together

log = get_logger(__name__)
audit_log = get_logger("serve.audit")
State = Literal["loading", "ready", "failed", "stopping"]
FOLLOW_S = 2.0  # between two looks for an update of an index
_BATCH_WAIT_S = 0.008  # longest wait for a batch to fill up
_CLOSE_S = 5.0  # for what no request waits for any more
# The answer to a failed question; the first kind of error that fits counts.
_FAILURES: dict[type[BaseException], ApiError] = {
    ReaderError: ApiError(
        502, "reader_failed", "the model that reads the passages did not give an answer"
    ),
    RetrievalError: ApiError(500, "retrieval_failed", "the search for passages failed"),
    BaseException: ApiError(500, "internal_error", "the server failed to answer this request"),
}


class Engine:
    """State of a running application: its shelves, the queue, and readiness.

    Args:
        open_pipeline: opens the index at start and at each reload; runs on a thread.
        folder: of this run, for files that all workers of the server share.

    Attributes:
        shelves: the indexes.
    """

    def __init__(self, settings: ServeSettings, open_pipeline: OpenPipeline, folder: Path) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()
        self.shelves = Shelves(settings, open_pipeline, self.metrics)
        self.state: State = "loading"
        self.created_s = int(time.time())
        self.conversions = Conversions(folder, settings.conversions)
        self._batcher = partial(
            MicroBatcher,
            self._run_batch,
            max_wait_s=_BATCH_WAIT_S,
            queue_size=settings.queue_size,
            metrics=self.metrics,
        )
        self.batcher = self._batcher(max_size=settings.batch_max_size)
        # Another batcher where a model elsewhere reads, which needs no core here.
        self._asking = self.batcher

    async def load(self, on_error: Callable[[Exception], object]) -> None:
        """Open the index and become ready; on failure the state is "failed", and the log has the
        reason.
        """
        try:
            n_readings = await self.shelves.in_background(self.shelves.load)
        except Exception as error:
            self.state = "failed"
            is_bug = not isinstance(error, RagError)
            log.error("the index could not be opened: %s", error, exc_info=is_bug)
            on_error(error)
            return
        if n_readings:
            self._asking = self._batcher(max_size=1, workers=n_readings)
            self._asking.start()
        if self.state == "loading":
            self.state = "ready"
            self.shelves.start()

    async def follow_updates(self) -> None:
        """Look for updates that other processes write, and switch to them, until cancelled."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            if self.state != "ready":
                continue
            try:
                await self.shelves.look()
            except Exception:
                log.exception("updates could not be looked for")

    async def reload(self) -> None:
        """Open index and models anew."""
        if self.state == "ready":
            await self.shelves.reload()

    async def close(self) -> None:
        """Refuse new questions, finish the accepted ones, release the index; a second call does
        nothing.
        """
        if self.state == "stopping":
            return
        self.state = "stopping"
        closing = [batcher.close(_CLOSE_S) for batcher in {self.batcher, self._asking}]
        if not all(await asyncio.gather(*closing)):
            log.warning("accepted questions were not finished")
        self.shelves.close()

    def scope(self, request: Request, shelf: str | Sequence[str] | None = None) -> Scope:
        """What a request may see; this is decided here alone.

        Args:
            shelf: names of the shelves that it asks; None: all.

        Raises:
            ApiError: 404: there is no such shelf; 503 while loading, after a failed load, or while
                stopping.
        """
        self.require_ready()
        return self.shelves.scope(shelf, request.state.person.groups)

    def shelf(self, scope: Scope) -> Shelf:
        """The only shelf of a scope.

        Raises:
            ApiError: 422: the request asks several.
        """
        if len(scope.shelves) > 1:
            hint = "name it with 'shelf'; GET /v1/models lists the shelves"
            raise invalid_request("this server has several shelves, and this asks one", hint)
        return self.shelves[scope.shelves[0]]

    async def read(self, scope: Scope, look_up: Callable[..., Result], *args: object) -> Result:
        """The result of a short function, which gets the pipeline of a scope's only shelf and the
        arguments.
        """
        shelf = await self._opened(scope)

        def leased() -> Result:
            with shelf.lease() as pipeline:
                return look_up(pipeline.for_groups(scope.groups), *args)

        return await asyncio.to_thread(leased)

    async def _opened(self, scope: Scope) -> Shelf:
        """The only shelf of a scope; its index is opened on a thread for such work."""
        shelf = self.shelf(scope)
        if not shelf.in_use:
            # A failure is that of the lease, too.
            with suppress(RagError):
                await self.shelves.in_background(shelf.open)
        return shelf

    def require_ready(self) -> None:
        """An ApiError, 503, while loading, after a failed load, while stopping, or if questions
        can no longer be run.
        """
        if self.state == "stopping":
            raise shutting_down()
        if self.state == "failed":
            raise refused(
                "load_failed", "the index could not be opened", 30, "see the server's log"
            )
        if self.state == "loading":
            raise refused("not_ready", "the index is still being loaded", 2)
        if self.batcher.has_failed or self._asking.has_failed:
            message = "the server can run no questions any more"
            raise refused("failed", message, 30, "see the server's log")

    async def run(
        self, request: Request, job: Job[Result], texts: list[str]
    ) -> list[Served[Result]]:
        """The results of a job for questions, claims or texts, in order.

        Raises:
            ApiError: 503 if not ready or full; 500 or 502 if a text fails, with its number; 499
                and 504 as `while_connected`.
        """
        fields = request.state.log_fields
        fields["n_questions"] = len(texts)
        work = self._batched(job, texts, request.state.request_id)
        limit_s: float | None = self.settings.timeout_s
        if job.on_text is not None:
            # Who reads the words of an answer waits so long for each of them.
            limit_s = None
        results = await self.while_connected(request, work, limit_s)
        fields["queue_ms"] = round(results[0].timings_ms["queue"], 3)
        fields["index_version"] = results[0].index_version
        for text, result in zip(texts, results, strict=True):
            passages = job.passage_ids(result.value)
            if passages is not None:
                self.audit(request, job.scope, passages, text)
        return results

    def audit(
        self, request: Request, scope: Scope, passages: Iterable[str], question: str = ""
    ) -> None:
        """Log which passages a person was shown, where the server knows people."""
        if not self.settings.knows_people:
            return
        fields = {
            "request_id": request.state.request_id,
            "person": request.state.person.name,
            "shelf": ", ".join(scope.shelves),
            "question_sha256": hashlib.sha256(question.encode()).hexdigest() if question else None,
            "passages": list(dict.fromkeys(passages)),
        }
        audit_log.info("passages shown", extra=fields)

    async def while_connected(
        self, request: Request, work: Coroutine[Any, Any, Result], limit_s: float | None
    ) -> Result:
        """The result of `work`, which is cancelled if the client disconnects or time is up.

        Raises:
            ApiError: 499 if the client disconnects, 504 at the time limit.
        """
        working = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_disconnected(request))
        both = (working, gone)
        try:
            await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if gone.done():
                raise ApiError(499, "client_closed_request", "the client left before the answer")
            assert limit_s is not None
            raise timed_out(limit_s)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _batched(
        self, job: Job[Result], texts: list[str], request_id: str
    ) -> list[Served[Result]]:
        if len(job.scope.shelves) == 1:
            await self._opened(job.scope)
        batcher = self._asking if job.kind == Ask.kind else self.batcher
        step = batcher.max_size if job.takes_turns else len(texts)
        results = list[Served[Result]]()
        for start in range(0, len(texts), step):
            try:
                batch = await batcher.submit(job, texts[start : start + step])
            except ItemFailed as failed:
                number = start + failed.number
                raise _failure(failed, job, texts, number, request_id) from None
            for served, wait_s in batch:
                served.timings_ms = {"queue": 1000.0 * wait_s, **served.timings_ms}
                results.append(served)
        return results

    def _run_batch(self, job: Job[Any], texts: list[str]) -> Sequence[Served[Any] | BaseException]:
        """Run a batch on a worker thread; a text that failed has an error as its result."""
        names = job.scope.shelves
        unavailable: list[str] = []
        with ExitStack() as leases:
            if len(names) == 1:
                leased = leases.enter_context(self.shelves[names[0]].lease())
                pipeline = leased.for_groups(job.scope.groups)
            else:
                shelves = [shelf for shelf in self.shelves if shelf.name in names]
                pipeline = together = Together(shelves, leases, job.scope)
                unavailable = together.unavailable
            results = job.run(pipeline, texts)
        answered = [result for result in results if isinstance(result, Served)]
        for result in answered:
            result.unavailable = unavailable
            if isinstance(result.value, AnswerSet) and not result.value.is_answered:
                self.metrics.no_answers.inc()
        for result in answered[:1]:
            for name, value_ms in result.timings_ms.items():
                if name != "total":
                    self.metrics.stage_seconds.labels(name).observe(value_ms / 1000.0)
        for name in filter(None, names):
            self.metrics.shelf_questions.labels(name, job.kind).inc(len(texts))
        self.metrics.questions.labels(job.kind).inc(len(texts))
        return results


def _failure(
    failed: ItemFailed, job: Job[Any], texts: list[str], number: int, request_id: str
) -> ApiError:
    cause = failed.__cause__
    answer = answer_to(cause)
    if answer is not None:
        return answer
    for error, lack in job.lacks.items():
        if isinstance(cause, error):
            log.warning("%s cannot be had: %s", job.kind, cause, extra={"request_id": request_id})
            return lack
    failure = next(failure for kind, failure in _FAILURES.items() if isinstance(cause, kind))
    fields = {"request_id": request_id, "code": failure.code, "question_number": number}
    log.error("a question could not be answered", exc_info=cause, extra=fields)
    which = f"questions.{number} ({texts[number][:100]!r}): " if len(texts) > 1 else ""
    hint = "try again in a moment; the server's log has the reason under this request id"
    return replace(failure, message=which + failure.message, hint=hint)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
