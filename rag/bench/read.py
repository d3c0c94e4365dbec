"""Reading: time and exact match by effort and precision, and beside Haystack's reader on the same weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag.bench.common import interval_of, working_folder
from rag.bench.load import latency_interval
from rag.bench.report import Report, Table
from rag.core.errors import ConfigError
from rag.core.optional import require
from rag.core.progress import Progress
from rag.core.types import Question
from rag.data.text import exact_match
from rag.metrics.significance import Interval, bootstrap, bootstrap_difference

if TYPE_CHECKING:
    from rag.core.types import RankedPassages

    _Read = Callable[[Sequence[str], Sequence[RankedPassages]], list[tuple[str, int | None]]]


@dataclass(slots=True)
class _Contestant:
    """A reader, and its measurements.

    Attributes:
        read: questions with their passages → the answer of each, and its token-layers if they are counted.
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
    efforts: Sequence[str] = ("full", "normal", "low"),
    haystack: bool = False,
    sample: int = 100,
    top_k: int = 20,
    batch_size: int = 16,
    retriever: str = "auto",
    precision: Sequence[str] = ("auto",),
    format: str = "auto",
) -> Report:
    """Time and exact match of reading, by effort and precision, and beside Haystack on the same weights.

    Passages are retrieved once; then all contestants read the same passages, one after another, first one
    question at a time, then in batches. Haystack gets the same weights in fp32, as transformers loads them,
    the same input (question, title, text), and all passages of a question as one batch.

    Args:
        questions: File of questions with answers.
        reader: Folder of an extractive reader; default: the shipped one.
        efforts: Efforts that the reader knows; the others are compared with the first.
        haystack: Read with Haystack's extractive reader, too.
        top_k: Passages per question.
        batch_size: Questions per batch; 1: no batches.
        precision: auto, fp32, bf16 or int8, for this system's reader; several are measured side by side.

    Raises:
        ConfigError: the reader does not know an effort, or is not an extractive one.
        MissingDependencyError: Haystack is to be measured and not installed.
    """
    from rag.data.questions import draw_sample, read_questions
    from rag.pipeline import Pipeline

    asked = draw_sample(read_questions(questions, format=format), sample, 0)
    pipeline = Pipeline.open(index, retriever=retriever, reader=False)
    found = pipeline.retrieve([question.text for question in asked], top_k)
    pipeline.close()
    settings = {
        "index": index, "questions": questions, "sample": len(asked), "top_k": top_k,
        "reader": reader or "shipped", "retriever": retriever, "batch_size": batch_size,
    }  # fmt: skip
    report = Report("read", settings)
    with working_folder("read") as folder:
        contestants = {
            ", ".join([effort, each][: len(precision)]): _Contestant(_ours(reader, each, effort))
            for effort, each in product(efforts, precision)
        }
        if haystack:
            contestants["Haystack"] = _Contestant(_haystack(reader, folder, top_k))
        _measure(contestants, asked, found, batch_size)
    _fill(report, contestants, next(iter(contestants)))
    return report


def _ours(source: str | None, precision: str, effort: str) -> _Read:
    from readers.open import open_reader

    opened = open_reader(source, precision=precision, effort=effort)

    def read(questions: Sequence[str], found: Sequence[RankedPassages]) -> list[tuple[str, int | None]]:
        passages = [[passage for _, passage in one] for one in found]
        results = opened.read(questions, passages, [[hit.score for hit, _ in one] for one in found], n_best=1)
        return [
            (result.answers[0].text if result.answers else "", result.reading.get("token_layers"))
            for result in results
        ]

    return read


def _haystack(source: str | None, folder: Path, top_k: int) -> _Read:
    """Haystack's component on an fp32 copy of the reader's weights, without its telemetry."""
    from readers.extractive.files import load_parts
    from readers.extractive.model import SpanModel
    from readers.extractive.training.finish import export_trained

    os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
    document = require("haystack", extra="peers").Document
    component = require("haystack_integrations.components.readers.transformers", extra="peers")
    parts = load_parts(source)
    if not isinstance(parts.model, SpanModel):
        raise ConfigError(f"{source}: only an extractive reader of spans can be given to Haystack")
    export_trained(folder, parts.model, parts.model.state_dict(), parts.tokenizer)
    peer: Any = component.TransformersExtractiveReader(
        model=str(folder), top_k=1, no_answer=False, max_seq_length=parts.settings.max_tokens,
        stride=parts.settings.stride_tokens, max_batch_size=top_k, token=None,
    )  # fmt: skip
    peer.warm_up()
    separator = f" {parts.tokenizer.sep_token} " if parts.settings.titled else " "

    def read(questions: Sequence[str], found: Sequence[RankedPassages]) -> list[tuple[str, int | None]]:
        answers: list[tuple[str, int | None]] = []
        for question, hits in zip(questions, found, strict=True):
            documents = [document(content=f"{passage.title}{separator}{passage.text}") for _, passage in hits]
            read = peer.run(query=question, documents=documents)["answers"]
            answers.append(((read[0].data if read else "") or "", None))
        return answers

    return read


def _measure(
    contestants: dict[str, _Contestant],
    asked: Sequence[Question],
    found: Sequence[RankedPassages],
    batch_size: int,
) -> None:
    """Contestants take turns question by question, then batch by batch, every second time in reverse."""
    for one in contestants.values():  # warm up
        one.read([asked[0].text], found[:1])
    sizes = sorted({1, batch_size})
    with Progress(len(sizes) * len(asked), "questions", "read") as progress:
        for size in sizes:
            for turn, begin in enumerate(range(0, len(asked), size)):
                part, hits = asked[begin : begin + size], found[begin : begin + size]
                for one in list(contestants.values())[:: 1 if turn % 2 == 0 else -1]:
                    started, cpu_before = time.perf_counter(), time.process_time()
                    answers = one.read([question.text for question in part], hits)
                    seconds = (time.perf_counter() - started) / len(part)
                    cpu_s = time.process_time() - cpu_before
                    if size == 1:
                        [(answer, cost)] = answers
                        one.right.append(exact_match(answer, part[0].answers, part[0].answer_profile))
                        one.costs += [] if cost is None else [cost]
                        one.alone_s.append(seconds)
                        one.alone_cpu_s.append(cpu_s)
                    else:
                        one.batched_s += [seconds] * len(part)
                progress.update(len(part))


def _fill(report: Report, contestants: dict[str, _Contestant], first: str) -> None:
    base, peer, rows = contestants[first], contestants.get("Haystack"), []
    for name, one in contestants.items():
        p50, p95 = (1000 * float(np.quantile(one.alone_s, q)) for q in (0.5, 0.95))
        faster, em = _times_faster(one, base), bootstrap(np.array(one.right, float))[0]
        cpu = latency_interval(one.alone_cpu_s, 50)
        cpu_share = interval_of(
            lambda a, b, axis: a.mean(axis) / b.mean(axis), one.alone_cpu_s, base.alone_cpu_s
        )
        share = float(np.mean(one.costs) / np.mean(base.costs)) if one.costs else None
        batched_ms = 1000 * float(np.mean(one.batched_s)) if one.batched_s else None
        batched = float(np.mean(base.batched_s) / np.mean(one.batched_s)) if one.batched_s else None
        figures: dict[str, Any] = {
            "ms": 1000 * float(np.mean(one.alone_s)), "p50_ms": p50, "p95_ms": p95,
            "cpu_p50_s": cpu, "cpu_share": cpu_share,
            "batched_ms": batched_ms, "faster": faster, "em": em,
            "batched_faster": batched, "token_layers": share,
        }  # fmt: skip
        row = [
            name, f"{figures['ms']:.0f}", f"{p95:.0f}", "–" if batched_ms is None else f"{batched_ms:.0f}",
            f"{cpu.times(1000):.0f}", f"{cpu_share:.2f}",
            f"{faster:.2f}", "–" if batched is None else f"{batched:.2f}",
            "–" if share is None else f"{100 * share:.0f} %", f"{em.times(100):.1f}",
        ]  # fmt: skip
        if peer is not None:
            gain = bootstrap_difference(peer.right, one.right)
            figures |= {"faster_than_haystack": _times_faster(one, peer), "em_gain": gain}
            row += [f"{figures['faster_than_haystack']:.2f}"]
            row += ["–" if one is peer else f"{gain.times(100):.1f}"]
        report.figures[name] = figures
        rows.append(tuple(row))
    columns = [
        "effort", "ms a question", "p95", "in batches", "median processor ms", f"/ {first}",
        f"× {first}", "in batches", "token-layers", "EM",
    ]  # fmt: skip
    columns += [] if peer is None else ["× Haystack", "EM gain"]
    title = "reading [95 % bootstrap interval over questions]"
    report.tables.append(Table(title, tuple(columns), rows))


def _times_faster(one: _Contestant, than: _Contestant) -> Interval:
    """Ratio of the mean seconds of the same questions, each read alone."""
    return interval_of(lambda a, b, axis: a.mean(axis) / b.mean(axis), than.alone_s, one.alone_s)
