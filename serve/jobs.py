"""What the server's worker thread does: it answers, searches or encodes a batch of questions."""

import ctypes
import gc
import platform
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rag.core.errors import ReaderError
from rag.core.progress import StageTimer
from rag.core.types import AnswerSet
from rag.data.filters import Filter
from serve.metrics import ServerMetrics
from serve.schemas import hit_json, passage_json
from serve.service import AnswerService, ServiceHolder

Outcome = dict[str, Any] | BaseException


@dataclass(frozen=True, slots=True)
class Job:
    """The task for a question, or for a text to encode; only questions with equal jobs share a batch.

    `index` is the name of one of the server's indexes; `side` is the encoder's for texts.
    """

    kind: Literal["ask", "retrieve", "embed"]
    index: str
    top_k: int = 0
    n_best: int = 0
    filter: Filter | None = None
    side: Literal["query", "passage"] = "query"


class JobRunner:
    """Runs jobs on the indexes that are served.

    Args:
        holders: the services by the name of their index.
    """

    def __init__(self, holders: Mapping[str, ServiceHolder], metrics: ServerMetrics) -> None:
        self.holders, self.metrics = holders, metrics

    def __call__(self, key: Hashable, questions: list[str]) -> list[Outcome]:
        """Run one batch; a question that failed has an error as its result."""
        assert isinstance(key, Job)
        with self.holders[key.index].lease() as service:
            if key.kind == "ask":
                return self._ask(service, key, questions)
            run = self._retrieve if key.kind == "retrieve" else self._embed
            timer = StageTimer()
            found = run(service, key, questions, timer)
            self.metrics.stages_finished(timer.timings_ms, timer.missing)
            self.metrics.questions.labels(key.kind, key.index).inc(len(questions))
            timings_ms = {stage: round(value, 3) for stage, value in timer.timings_ms.items()}
            shared = {"index_version": service.index_version, "timings_ms": timings_ms}
            shared |= {"partial": list(timer.missing)} if timer.missing else {}
            return [{**one, **shared} for one in found]

    def _ask(self, service: AnswerService, key: Job, questions: list[str]) -> list[Outcome]:
        answer_sets = service.ask(questions, top_k=key.top_k, n_best=key.n_best, filter=key.filter)
        self._count_answers(answer_sets, key.index)
        return [ReaderError(one.failure) if one.failure else one.to_json() for one in answer_sets]

    def _retrieve(
        self, service: AnswerService, key: Job, questions: list[str], timer: StageTimer
    ) -> list[dict[str, Any]]:
        with timer("retrieve"):
            found = service.retrieve(questions, key.top_k, filter=key.filter, timer=timer)
        return [
            {"question": question, "hits": [hit_json(*pair) for pair in pairs]}
            for question, pairs in zip(questions, found, strict=True)
        ]

    def _embed(
        self, service: AnswerService, key: Job, questions: list[str], timer: StageTimer
    ) -> list[dict[str, Any]]:
        with timer("encode"):
            return [{"vector": vector} for vector in service.embed(questions, key.side)]

    def _count_answers(self, answer_sets: Sequence[AnswerSet], index: str) -> None:
        self.metrics.questions.labels("ask", index).inc(len(answer_sets))
        self.metrics.no_answers.labels(index).inc(sum(not one.is_answered for one in answer_sets))
        if answer_sets:
            self.metrics.stages_finished(answer_sets[0].timings_ms, answer_sets[0].partial)


def look_up(holder: ServiceHolder, passage_id: str, around: int) -> dict[str, Any] | None:
    """A passage as JSON, with `around` of them before and after it in its document, or None."""
    with holder.lease() as service:
        found = service.passage(passage_id)
        if found is None:
            return None
        shown = passage_json(found)
        if around:
            before, after = service.around(passage_id, around)
            shown["before"] = [passage_json(passage) for passage in before]
            shown["after"] = [passage_json(passage) for passage in after]
        return shown


def release_memory() -> None:
    """Return the memory of a replaced index and models to the system; glibc would keep most of it."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
