"""The engine accepts questions, has them answered in batches, and tracks whether the server is
ready.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from starlette.requests import Request

from rag.core.errors import (
    ConfigError,
    MismatchedArtifactError,
    QuestionError,
    RagError,
    ReaderError,
    RetrievalError,
)
from rag.core.log import get_logger, stage
from rag.core.manifest import index_version
from rag.core.types import Hit, Passage, PolicyName
from rag.data.filters import Filter, FilterError
from rag.opening import OpenSettings
from rag.policies import open_policy
from serve.batching import ItemFailed, MicroBatcher
from serve.conversions import Conversions
from serve.errors import ApiError, invalid_request, refused, shutting_down
from serve.metrics import ServerMetrics
from serve.settings import ServeSettings

if TYPE_CHECKING:
    from rag.pipeline import Pipeline

log = get_logger(__name__)
State = Literal["loading", "ready", "failed", "stopping"]
OpenPipeline = Callable[[ServeSettings], "Pipeline"]
Result = TypeVar("Result")
SEE_LOG = "the server's log has the reason"
FOLLOW_S = 2.0  # between two looks for an update of the index
_BATCH_WAIT_S = 0.008  # longest wait for a batch to fill up
_CLOSE_S = 5.0  # for what no request waits for any more
_FAILURES: tuple[tuple[type[Exception], tuple[int, str, str]], ...] = (
    (
        ReaderError,
        (502, "reader_failed", "the model that reads the passages did not give an answer"),
    ),
    (RetrievalError, (500, "retrieval_failed", "the search for passages failed")),
    (Exception, (500, "internal_error", "the server failed to answer this request")),
)


@dataclass(frozen=True, slots=True)
class Job:
    """The task for a question, which may follow up on `context`, or for a text to encode as one
    `side` of the encoder; only equal jobs share a batch.
    """

    kind: Literal["ask", "retrieve", "embed"]
    top_k: int = 0
    n_best: int = 0
    filter: Filter | None = None
    context: str = ""
    policy: PolicyName = "once"
    side: Literal["query", "passage"] = "query"


class Engine:
    """State of a running application: the pipeline, the queue, and readiness.

    Args:
        open_pipeline: opens the index at start and at each reload; runs on a thread.
        folder: of this run, for files that all workers of the server share.

    Attributes:
        pipeline: in use by new requests; None while loading. Running requests finish on the one
            with which they started; the index of one that was replaced is closed once none refers
            to it any more.
    """

    def __init__(self, settings: ServeSettings, open_pipeline: OpenPipeline, folder: Path) -> None:
        self.settings, self._open = settings, open_pipeline
        self.pipeline: Pipeline | None = None
        self.metrics = ServerMetrics()
        self.state: State = "loading"
        self.created_s = int(time.time())
        self.conversions = Conversions(folder, settings.conversions)
        self._reload_lock = asyncio.Lock()
        self._reads = ThreadPoolExecutor(thread_name_prefix="rag-read")
        self._changes = ThreadPoolExecutor(2, thread_name_prefix="rag-change")  # which take long
        self._batcher = partial(
            MicroBatcher,
            self._run_batch,
            max_wait_s=_BATCH_WAIT_S,
            queue_size=settings.queue_size,
            metrics=self.metrics,
        )
        self.batcher = self._batcher(max_size=settings.batch_max_size)
        self._readings: MicroBatcher | None = (
            None  # where a model elsewhere reads, which needs no core here
        )

    async def load(self, on_error: Callable[[Exception], object]) -> None:
        """Open the index and become ready; on failure the state is "failed", and the log has the
        reason.
        """
        try:
            pipeline = await self.in_background(self._open, self.settings)
        except Exception as error:
            self.state = "failed"
            is_bug = not isinstance(error, RagError)
            log.error("the index could not be opened: %s", error, exc_info=is_bug)
            on_error(error)
            return
        await self._install(pipeline)
        if reason := self.read_only():
            log.warning("documents cannot be changed: %s", reason)
        workers = 0 if pipeline.reader is None else pipeline.reader.max_concurrent
        if workers:
            self._readings = self._batcher(max_size=1, workers=workers)
            self._readings.start()
        if self.state == "loading":
            self.state = "ready"

    def read_only(self) -> str:
        """Why documents cannot be changed; "" if they can, or if that is off because there are no
        keys.
        """
        folder = self.settings.index
        may_write = not self.settings.api_keys or not folder.exists() or os.access(folder, os.W_OK)
        return "" if may_write else "its folder is read-only for this server"

    async def replace(self, *, anew: bool = False) -> None:
        """Switch to the version of the index that is on disk now; if it cannot be opened, the one
        in use stays, and the log has the reason.

        Args:
            anew: also open its models anew, and the same version again; else those in use are kept
                if they belong to the index.
        """
        async with self._reload_lock:
            if self.state != "ready":
                return
            version = self.require_ready().index_version
            if not anew and await self.in_thread(_version_in, self.settings.index) == version:
                return
            try:
                opened = await self.in_background(self._opened, anew)
            except Exception:
                log.exception("the index could not be opened; the one in use stays")
                return
            await self._install(opened)

    def _opened(self, anew: bool) -> Pipeline:
        if not anew:
            with suppress(MismatchedArtifactError):  # models and all have to be opened
                return open_newer(self.require_ready())
        return self._open(self.settings)

    async def follow_updates(self) -> None:
        """Look for updates that other processes write, and switch to them, until cancelled."""
        seen = (
            None  # a version that cannot be opened is tried once, an index that is gone logged once
        )
        while True:
            await asyncio.sleep(FOLLOW_S)
            version = await self.in_thread(_version_in, self.settings.index)
            if self.state != "ready" or version == seen:
                continue
            seen = version
            if not version:
                log.warning("%s holds no readable index; the one in use stays", self.settings.index)
            # no name here for the pipeline in use: it would keep a replaced one in memory
            elif version != self.require_ready().index_version:
                await self.replace()

    async def _install(self, pipeline: Pipeline) -> None:
        previous = None if self.pipeline is None else self.pipeline.index_version
        weakref.finalize(pipeline, pipeline.index.close)
        self.pipeline = pipeline
        self.metrics.index_changed(pipeline.index_version, len(pipeline.index.passages), previous)
        versions = {"index_version": pipeline.index_version, "previous_index_version": previous}
        log.info("index in use: %s", self.settings.index.resolve(), extra=versions)
        if previous is not None:
            await self.in_background(
                gc.collect
            )  # which closes the index of a pipeline that refers to itself

    async def close(self) -> None:
        """Refuse new questions, finish the accepted ones, release the index; a second call does
        nothing.
        """
        if self.state == "stopping":
            return
        self.state = "stopping"
        batchers = [batcher for batcher in (self.batcher, self._readings) if batcher is not None]
        if not all(await asyncio.gather(*(batcher.close(_CLOSE_S) for batcher in batchers))):
            log.warning("accepted questions were not finished")
        self.pipeline = None

    async def in_thread(self, function: Callable[..., Result], *args: object) -> Result:
        """Call a short `function` on a thread; it runs to its end even if the caller is
        cancelled.
        """
        return await asyncio.wrap_future(self._reads.submit(function, *args))

    async def in_background(self, function: Callable[..., Result], *args: object) -> Result:
        """The same for a long one, which opens or writes an index; it takes no thread from the
        short ones.
        """
        return await asyncio.wrap_future(self._changes.submit(function, *args))

    def require_ready(self) -> Pipeline:
        """The pipeline in use.

        Raises:
            ApiError: 503 while loading, after a failed load, or while stopping.
        """
        pipeline = self.pipeline
        if self.state == "stopping":
            raise shutting_down()
        if self.state == "failed":
            raise refused(
                "load_failed", "the index could not be opened", 30, "see the server's log"
            )
        if pipeline is None or self.state == "loading":
            raise refused("not_ready", "the index is still being loaded", 2)
        return pipeline

    async def run(self, request: Request, job: Job, questions: list[str]) -> list[dict[str, Any]]:
        """Results for questions as JSON values, in order; timings include the wait in the queue.

        Raises:
            ApiError: 503 if not ready or full; 500 or 502 if a question fails, with its number; 499
                and 504 as `while_connected`.
        """
        self.require_ready()
        fields = request.state.log_fields
        fields["n_questions"] = len(questions)
        work = self._batched(job, questions, request.state.request_id)
        results = await self.while_connected(request, work, self.settings.timeout_s)
        fields["queue_ms"] = results[0]["timings_ms"]["queue"]
        fields["index_version"] = results[0]["index_version"]
        return results

    async def while_connected(
        self, request: Request, work: Coroutine[Any, Any, Result], limit_s: float | None
    ) -> Result:
        """The result of `work`, which is cancelled if the client disconnects or time is up.

        Raises:
            ApiError: 499 if the client disconnects, 504 at the time limit.
        """
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                {working, gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                return working.result()
            if gone.done():
                raise ApiError(499, "client_closed_request", "the client left before the answer")
            hint = "try again, ask fewer questions at once, or lower top_k"
            raise ApiError(504, "timeout", f"no answer within {limit_s:g} s", hint=hint)
        finally:
            working.cancel()
            gone.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)

    async def _batched(
        self, job: Job, questions: list[str], request_id: str
    ) -> list[dict[str, Any]]:
        batcher = self._readings if job.kind == "ask" and self._readings else self.batcher
        step = (
            batcher.max_size if job.kind == "embed" else len(questions)
        )  # others' turn in between
        results, start = list[tuple[dict[str, Any], float]](), 0
        try:
            for start in range(0, len(questions), step):
                results += await batcher.submit(job, questions[start : start + step])
        except ItemFailed as failed:
            raise _failure(failed, job, questions, start + failed.number, request_id) from None
        return [
            {**result, "timings_ms": {"queue": round(wait_s * 1000.0, 3)} | result["timings_ms"]}
            for result, wait_s in results
        ]

    def _run_batch(
        self, job: Hashable, questions: list[str]
    ) -> list[dict[str, Any] | BaseException]:
        """Run one batch on a worker thread; a question that failed has an error as its result."""
        assert isinstance(job, Job)
        pipeline = self.pipeline
        assert (
            pipeline is not None
        )  # questions are accepted once there is one, and finished before it goes
        results: list[dict[str, Any] | BaseException]
        if job.kind == "ask":
            answer_sets = pipeline.ask_many(
                questions,
                top_k=job.top_k,
                n_best=job.n_best,
                filter=job.filter,
                context=job.context,
                policy=open_policy(job.policy, pipeline.reader),
            )
            timings_ms = answer_sets[0].timings_ms
            self.metrics.no_answers.inc(sum(not answers.is_answered for answers in answer_sets))
            results = [
                ReaderError(each.failure) if each.failure else each.to_json()
                for each in answer_sets
            ]
        else:
            timer: dict[str, float] = {}
            if job.kind == "embed":
                with stage(timer, "encode"):
                    shown = [{"vector": vector} for vector in pipeline.embed(questions, job.side)]
            else:
                with stage(timer, "retrieve"):
                    found = pipeline.search(questions, job.top_k, filter=job.filter, timer=timer)
                shown = [
                    {
                        "question": result.query,
                        "hits": [hit_json(hit, passage) for hit, passage in result.passages],
                    }
                    for result in found
                ]
            timings_ms = {name: round(value, 3) for name, value in timer.items()}
            shared = {"index_version": pipeline.index_version, "timings_ms": timings_ms}
            results = [{**result, **shared} for result in shown]
        for name in timings_ms.keys() - {"total"}:
            self.metrics.stage_seconds.labels(name).observe(timings_ms[name] / 1000.0)
        self.metrics.questions.labels(job.kind).inc(len(questions))
        return results


def passage_json(passage: Passage) -> dict[str, Any]:
    """A passage by its id, title and text; with location and metadata if it has such."""
    shown = passage.to_json()
    return {"passage_id": shown.pop("id"), **shown}


def hit_json(hit: Hit, passage: Passage) -> dict[str, Any]:
    """A passage with its score; with rank and score before re-ranking, if it was re-ranked."""
    first = {} if hit.first_stage is None else {"first_stage": asdict(hit.first_stage)}
    return {**passage_json(passage), "score": float(hit.score), **first}


def _failure(
    failed: ItemFailed, job: Job, questions: list[str], number: int, request_id: str
) -> ApiError:
    cause = failed.__cause__
    if isinstance(cause, FilterError | QuestionError):  # the client's mistake, found out only here
        return invalid_request(cause.message, cause.hint)
    if job.policy != "once" and isinstance(cause, ConfigError):
        log.warning("a policy could not be followed: %s", cause, extra={"request_id": request_id})
        message = f"this server's reader is no language model, which the policy {job.policy!r} asks"
        return invalid_request(message, "leave 'policy' out")
    if job.kind == "embed" and isinstance(cause, ConfigError):
        log.warning("a text could not be encoded: %s", cause, extra={"request_id": request_id})
        hint = (
            "an encoder with one vector per text makes them; a reader's own one, of questions alone"
        )
        return invalid_request(f"this index makes no vectors of input_type {job.side!r}", hint)
    status, code, message = next(failure for kind, failure in _FAILURES if isinstance(cause, kind))
    fields = {"request_id": request_id, "code": code, "question_number": number}
    log.error("a question could not be answered", exc_info=cause, extra=fields)
    which = f"questions.{number} ({questions[number][:100]!r}): " if len(questions) > 1 else ""
    hint = "try again in a moment; the server's log has the reason under this request id"
    return ApiError(status, code, which + message, hint=hint)


def open_pipeline(settings: ServeSettings) -> Pipeline:
    """Open the pipeline of the settings' index and warm it up with one question.

    A model elsewhere is not asked: its outage would keep the searches from starting, too.

    Raises:
        RagError: the index or a model cannot be used.
    """
    from rag.pipeline import Pipeline
    from rag.scale.search import open_sharded

    index = settings.index if settings.ray is None else open_sharded(settings.index, settings.ray)
    pipeline = Pipeline.open(index, **settings.model_dump(include=set(OpenSettings.model_fields)))
    try:
        reader = pipeline.reader
        if reader is None or reader.max_concurrent:
            # A model at an address is not asked: its outage must not stop the search.
            pipeline.retrieve("Is everything loaded?")
        else:
            pipeline.ask("Is everything loaded?")
    except BaseException:
        pipeline.close()
        raise
    return pipeline


def open_newer(pipeline: Pipeline) -> Pipeline:
    """The version of a pipeline's index that is on disk now, with the same models.

    Raises:
        MismatchedArtifactError: the index has another encoder now, or its retriever cannot move to
            another.
        RagError: the index is damaged.
    """
    from indexers.index import Index
    from rag.pipeline import Pipeline

    index = Index.open(pipeline.index.directory)
    try:
        if pipeline.index.encoder_identity is not None:
            index.check_encoder(pipeline.index.encoder_identity)
        return Pipeline(index, pipeline.retriever.over(index), pipeline.reader)
    except BaseException:
        index.close()
        raise


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _version_in(folder: Path) -> str:
    """The version of the index in a folder; "" if its manifest cannot be read."""
    try:
        return index_version(folder)
    except (RagError, OSError):  # also of a file system that is away for a while
        return ""
