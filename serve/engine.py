"""The engine accepts questions, has them answered in batches, and tracks whether the server is
ready.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from starlette.requests import Request

from rag.core.errors import ArtifactError, ConfigError, RagError, ReaderError, RetrievalError
from rag.core.log import get_logger, stage
from rag.core.types import Hit, Passage
from rag.data.filters import Filter
from readers.protocols import TextSink
from serve.batching import ItemFailed, MicroBatcher
from serve.conversions import Conversions
from serve.errors import ApiError, answer_to, invalid_request, refused, shutting_down, timed_out
from serve.metrics import ServerMetrics
from serve.settings import ServeSettings
from serve.shelves import OpenPipeline, Scope, Shelf, Shelves
from serve.together import Together

if TYPE_CHECKING:
    from rag.pipeline import Pipeline

log = get_logger(__name__)
audit_log = get_logger("serve.audit")
State = Literal["loading", "ready", "failed", "stopping"]
Result = TypeVar("Result")
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


# The answer where the server's models cannot do a kind of job; its message is a format of the job.
_LACKS = {
    "embed": invalid_request(
        "this index makes no vectors of input_type {job.side!r}",
        "an encoder with one vector per text makes them; a reader's own one, of questions alone",
    ),
    "rerank": invalid_request(
        "this server has no model that scores texts",
        "its operator may set RAG_SERVE_RERANK, or an extractive reader",
    ),
    "verify": ApiError(
        501,
        "no_verifier",
        "this server has no verifier of claims",
        "its operator may set RAG_SERVE_VERIFIER",
    ),
}


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done with questions, claims or texts; only equal jobs share a batch.

    Attributes:
        context: the question that a question follows up on; for "rerank" the question for which
            texts are scored.
        side: for "embed", whether texts are encoded as questions or as passages.
        in_text: the claims are the sentences of a text.
        alone: the id of a request that shares its batches with no other request, so that an equal
            request has the same result to the bit; "" if it may share them.
        on_text: gets the words of an answer as they come, on another thread.
    """

    kind: Literal["ask", "retrieve", "embed", "rerank", "verify"]
    scope: Scope
    top_k: int = 0
    n_best: int = 0
    filter: Filter | None = None
    context: str = ""
    side: Literal["query", "passage"] = "query"
    in_text: bool = False
    alone: str = ""
    on_text: TextSink | None = None

    @property
    def takes_turns(self) -> bool:
        """Whether a long list lets others' questions in between its batches."""
        return self.kind in ("embed", "verify") or bool(self.alone)


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

    async def run(self, request: Request, job: Job, questions: list[str]) -> list[dict[str, Any]]:
        """Results for questions as JSON values, in order; timings include the wait in the queue.

        Raises:
            ApiError: 503 if not ready or full; 500 or 502 if a question fails, with its number; 499
                and 504 as `while_connected`.
        """
        fields = request.state.log_fields
        fields["n_questions"] = len(questions)
        work = self._batched(job, questions, request.state.request_id)
        limit_s: float | None = self.settings.timeout_s
        if job.on_text is not None:
            # Who reads the words of an answer waits so long for each of them.
            limit_s = None
        results = await self.while_connected(request, work, limit_s)
        fields["queue_ms"] = results[0]["timings_ms"]["queue"]
        fields["index_version"] = results[0]["index_version"]
        if job.kind not in ("embed", "rerank"):
            for question, result in zip(questions, results, strict=True):
                self.audit(request, job.scope, passage_ids(result), question)
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
        self, job: Job, questions: list[str], request_id: str
    ) -> list[dict[str, Any]]:
        if len(job.scope.shelves) == 1:
            await self._opened(job.scope)
        batcher = self._asking if job.kind == "ask" else self.batcher
        step = batcher.max_size if job.takes_turns else len(questions)
        results = list[dict[str, Any]]()
        for start in range(0, len(questions), step):
            try:
                batch = await batcher.submit(job, questions[start : start + step])
            except ItemFailed as failed:
                number = start + failed.number
                raise _failure(failed, job, questions, number, request_id) from None
            for result, wait_s in batch:
                timings_ms = {"queue": round(wait_s * 1000.0, 3), **result["timings_ms"]}
                results.append({**result, "timings_ms": timings_ms})
        return results

    def _run_batch(
        self, job: Hashable, questions: list[str]
    ) -> list[dict[str, Any] | BaseException]:
        """Run a batch on a worker thread; a question that failed has an error as its result."""
        assert isinstance(job, Job)
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
            results = self._run_job(job, pipeline, questions)
        answered = [result for result in results if isinstance(result, dict)]
        for result in answered:
            if unavailable:
                result["unavailable"] = unavailable
        for result in answered[:1]:
            for name, value_ms in result["timings_ms"].items():
                if name != "total":
                    self.metrics.stage_seconds.labels(name).observe(value_ms / 1000.0)
        for name in filter(None, names):
            self.metrics.shelf_questions.labels(name, job.kind).inc(len(questions))
        self.metrics.questions.labels(job.kind).inc(len(questions))
        return results

    def _run_job(
        self, job: Job, pipeline: Pipeline, questions: list[str]
    ) -> list[dict[str, Any] | BaseException]:
        if job.kind == "verify":
            verdicts = pipeline.verify(questions, job.top_k, filter=job.filter, in_text=job.in_text)
            return [verdict.to_json() for verdict in verdicts]
        if job.kind != "ask":
            return [*_look_up(job, pipeline, questions)]
        answer_sets = pipeline.ask_many(
            questions,
            top_k=job.top_k,
            n_best=job.n_best,
            filter=job.filter,
            context=job.context,
            on_text=job.on_text,
        )
        self.metrics.no_answers.inc(sum(not answers.is_answered for answers in answer_sets))
        results: list[dict[str, Any] | BaseException] = []
        for answers in answer_sets:
            failure = answers.failure
            results.append(ReaderError(failure) if failure else answers.to_json())
        return results


def _look_up(job: Job, pipeline: Pipeline, texts: list[str]) -> list[dict[str, Any]]:
    """Vectors, scores or passages for texts, without answers."""
    timer: dict[str, float] = {}
    with stage(timer, job.kind):
        if job.kind == "embed":
            results = [{"vector": vector} for vector in pipeline.embed(texts, job.side)]
        elif job.kind == "rerank":
            is_log_odds = pipeline.scorer.is_log_odds
            scores = pipeline.relevance(job.context, texts).tolist()
            results = [{"score": score, "is_log_odds": is_log_odds} for score in scores]
        else:
            results = []
            for found in pipeline.search(texts, job.top_k, filter=job.filter, timer=timer):
                hits = [hit_json(hit, passage) for hit, passage in found.passages]
                results.append({"question": found.query, "hits": hits})
    timings_ms = {name: round(value, 3) for name, value in timer.items()}
    shared = {"index_version": pipeline.index_version, "timings_ms": timings_ms}
    return [{**result, **shared} for result in results]


def passage_ids(value: object) -> Iterator[str]:
    """The ids of the passages in a JSON value."""
    if isinstance(value, dict):
        if "passage_id" in value:
            yield value["passage_id"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from passage_ids(item)


def passage_json(passage: Passage) -> dict[str, object]:
    """A passage by its id, title and text; with location and metadata if it has such."""
    fields = passage.to_json()
    return {"passage_id": fields.pop("id"), **fields}


def hit_json(hit: Hit, passage: Passage) -> dict[str, object]:
    """A passage with its score; with rank and score before re-ranking, if it was re-ranked."""
    first = {} if hit.first_stage is None else {"first_stage": asdict(hit.first_stage)}
    return {**passage_json(passage), "score": float(hit.score), **first}


def _failure(
    failed: ItemFailed, job: Job, questions: list[str], number: int, request_id: str
) -> ApiError:
    cause = failed.__cause__
    answer = answer_to(cause)
    if answer is not None:
        return answer
    lack = _LACKS.get(job.kind)
    # A pipeline without a verifier raises an ArtifactError.
    error = ArtifactError if job.kind == "verify" else ConfigError
    if lack is not None and isinstance(cause, error):
        log.warning("%s cannot be had: %s", job.kind, cause, extra={"request_id": request_id})
        return replace(lack, message=lack.message.format(job=job))
    failure = next(failure for kind, failure in _FAILURES.items() if isinstance(cause, kind))
    fields = {"request_id": request_id, "code": failure.code, "question_number": number}
    log.error("a question could not be answered", exc_info=cause, extra=fields)
    which = f"questions.{number} ({questions[number][:100]!r}): " if len(questions) > 1 else ""
    hint = "try again in a moment; the server's log has the reason under this request id"
    return replace(failure, message=which + failure.message, hint=hint)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
