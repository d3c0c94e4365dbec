"""Reading: time and exact match by effort and precision."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag.bench.common import interval_of
from rag.bench.load import latency_interval
from rag.bench.report import Report
from rag.core.log import Progress
from rag.core.types import Question
from rag.data.text import exact_match
from rag.metrics.significance import Interval, bootstrap

if TYPE_CHECKING:
    from rag.core.types import RankedPassages

    _Read = Callable[[Sequence[str], Sequence[RankedPassages]], list[tuple[str, int | None]]]


@dataclass(slots=True)
class _Contestant:
    """A reader, and its measurements.

    Attributes:
        read: questions with their passages → the answer of each, and its token-layers if they are
            counted.
        costs: token-layers of each question read alone.
        alone_s, batched_s: seconds per question, read alone and in a batch.
        alone_cpu_s: processor time per question read alone, of all threads.
        right: whether each answer matched.
    """

    read: _Read
    costs: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    batched_s: list[float] = field(default_factory=list)
    alone_cpu_s: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)


def run_read_benchmark(
    index: Path,
    questions: Path,
    reader: str | None = None,
    efforts: Sequence[str] = ("full", "normal"),
    sample: int = 100,
    top_k: int = 20,
    batch_size: int = 16,
    retriever: str = "auto",
    precision: Sequence[str] = ("auto",),
) -> Report:
    """Time and exact match of reading, by effort and precision.

    Passages are retrieved once; then all contestants read the same passages, one after another,
    first one question at a time, then in batches.

    Args:
        questions: File of questions with answers.
        reader: Folder of an extractive reader; default: the shipped one.
        efforts: Efforts that the reader knows; the others are compared with the first.
        top_k: Passages per question.
        batch_size: Questions per batch; 1: no batches.
        precision: auto, fp32, bf16 or int8, for this system's reader; several are measured side by
            side.

    Raises:
        ConfigError: the reader does not know an effort, or is not an extractive one.
    """
    from rag.data.questions import draw_sample, read_questions
    from rag.pipeline import Pipeline

    drawn = draw_sample(read_questions(questions), sample, 0)
    pipeline = Pipeline.open(index, retriever=retriever, reader=False)
    ranked = pipeline.retrieve_many([question.text for question in drawn], top_k)
    pipeline.close()
    settings = {
        "index": index,
        "questions": questions,
        "sample": len(drawn),
        "top_k": top_k,
        "reader": reader or "shipped",
        "retriever": retriever,
        "batch_size": batch_size,
    }
    report = Report("read", settings)
    contestants = {
        ", ".join([effort, each][: len(precision)]): _Contestant(_ours(reader, each, effort))
        for effort, each in product(efforts, precision)
    }
    _measure(contestants, drawn, ranked, batch_size)
    _fill(report, contestants, next(iter(contestants)))
    return report


def _ours(source: str | None, precision: str, effort: str) -> _Read:
    from readers.open import open_reader
    from readers.protocols import ReadRequest

    opened = open_reader(source, precision=precision, effort=effort)

    def read(
        questions: Sequence[str], ranked: Sequence[RankedPassages]
    ) -> list[tuple[str, int | None]]:
        results = opened.read(list(map(ReadRequest, questions, ranked)), n_best=1)
        return [
            (result.answers[0].text if result.answers else "", result.reading.get("token_layers"))
            for result in results
        ]

    return read


def _measure(
    contestants: dict[str, _Contestant],
    drawn: Sequence[Question],
    ranked: Sequence[RankedPassages],
    batch_size: int,
) -> None:
    """Contestants take turns question by question, then batch by batch, every second time in
    reverse.
    """
    for contestant in contestants.values():  # warm up
        contestant.read([drawn[0].text], ranked[:1])
    sizes = sorted({1, batch_size})
    with Progress(len(sizes) * len(drawn), "questions", "read") as progress:
        for size in sizes:
            for turn, begin in enumerate(range(0, len(drawn), size)):
                part, hits = drawn[begin : begin + size], ranked[begin : begin + size]
                for contestant in list(contestants.values())[:: 1 if turn % 2 == 0 else -1]:
                    started, cpu_before = time.perf_counter(), time.process_time()
                    answers = contestant.read([question.text for question in part], hits)
                    seconds = (time.perf_counter() - started) / len(part)
                    cpu_s = time.process_time() - cpu_before
                    if size == 1:
                        [(answer, cost)] = answers
                        contestant.right.append(
                            exact_match(answer, part[0].answers, part[0].answer_profile)
                        )
                        contestant.costs += [] if cost is None else [cost]
                        contestant.alone_s.append(seconds)
                        contestant.alone_cpu_s.append(cpu_s)
                    else:
                        contestant.batched_s += [seconds] * len(part)
                progress.update(len(part))


def _fill(report: Report, contestants: dict[str, _Contestant], first: str) -> None:
    base = contestants[first]
    columns, rows = list[str](), list[list[str]]()
    for name, own in contestants.items():
        p50, p95 = (1000 * float(np.quantile(own.alone_s, q)) for q in (0.5, 0.95))
        faster, em = (
            _mean_ratio(base.alone_s, own.alone_s),
            bootstrap(np.array(own.right, float))[0],
        )
        cpu = latency_interval(own.alone_cpu_s, 50)
        cpu_share = _mean_ratio(own.alone_cpu_s, base.alone_cpu_s)
        share = float(np.mean(own.costs) / np.mean(base.costs)) if own.costs else None
        batched_ms = 1000 * float(np.mean(own.batched_s)) if own.batched_s else None
        batched = float(np.mean(base.batched_s) / np.mean(own.batched_s)) if own.batched_s else None
        figures: dict[str, Any] = {
            "ms": 1000 * float(np.mean(own.alone_s)),
            "p50_ms": p50,
            "p95_ms": p95,
            "cpu_p50_s": cpu,
            "cpu_share": cpu_share,
            "batched_ms": batched_ms,
            "faster": faster,
            "em": em,
            "batched_faster": batched,
            "token_layers": share,
        }
        cells = [
            ("effort", name),
            ("ms a question", f"{figures['ms']:.0f}"),
            ("p95", f"{p95:.0f}"),
            ("in batches", "–" if batched_ms is None else f"{batched_ms:.0f}"),
            ("median processor ms", f"{cpu.times(1000):.0f}"),
            (f"/ {first}", f"{cpu_share:.2f}"),
            (f"× {first}", f"{faster:.2f}"),
            ("in batches", "–" if batched is None else f"{batched:.2f}"),
            ("token-layers", "–" if share is None else f"{100 * share:.0f} %"),
            ("EM", f"{em.times(100):.1f}"),
        ]
        report.figures[name] = figures
        rows.append([text for _, text in cells])
        columns = [column for column, _ in cells]
    title = "reading [95 % bootstrap interval over questions]"
    report.add_table(title, columns, rows)


def _mean_ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Ratio of the mean seconds of the same questions."""
    return interval_of(lambda x, y, axis: x.mean(axis) / y.mean(axis), a, b)
