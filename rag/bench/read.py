"""Reading: time and exact match by effort and precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from rag.bench.common import Timings, percentile_ms, ratio, time_interleaved
from rag.bench.report import Report
from rag.core.types import AnswerSet, Question
from rag.data.text import exact_match
from rag.metrics.significance import bootstrap
from readers.protocols import Reader, ReadRequest

_Timings = Timings[list[AnswerSet]]


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
        precision: auto, fp32, bf16 or int8; several are measured side by side.

    Raises:
        ConfigError: the reader does not know an effort, or is not an extractive one.
    """
    from rag.data.questions import draw_sample, read_questions
    from rag.pipeline import Pipeline
    from readers.open import open_reader

    drawn = draw_sample(read_questions(questions), sample, 0)
    with Pipeline.open(index, retriever=retriever, reader=False) as pipeline:
        ranked = pipeline.retrieve_many([question.text for question in drawn], top_k)
    requests = [ReadRequest(q.text, hits) for q, hits in zip(drawn, ranked, strict=True)]
    readers: dict[str, Reader] = {}
    for effort, name in product(efforts, precision):
        label = effort if len(precision) == 1 else f"{effort}, {name}"
        readers[label] = open_reader(reader, precision=name, effort=effort)
    report = Report("reading [over questions]")
    first = next(iter(readers))
    timings = _read_all(readers, requests, 1)
    base = timings[first]
    for label, times in timings.items():
        report.rows[label] = {
            "ms a question": 1000 * float(np.mean(times.elapsed_s)),
            "median processor ms": percentile_ms(times.processor_s),
            f"processor / {first}": ratio(times.processor_s, base.processor_s, np.mean),
            f"× {first}": ratio(base.elapsed_s, times.elapsed_s, np.mean),
            "EM": bootstrap(list(map(_is_right, drawn, times.results))).times(100),
            "token-layers, %": 100 * _token_layers(times) / _token_layers(base),
        }
    if batch_size > 1:
        timings = _read_all(readers, requests, batch_size)
        base_s = sum(timings[first].elapsed_s)
        for label, times in timings.items():
            batches_s = sum(times.elapsed_s)
            report.rows[label]["ms in batches"] = 1000 * batches_s / len(drawn)
            report.rows[label][f"× {first} in batches"] = base_s / batches_s
    return report


def _read_all(
    readers: Mapping[str, Reader], requests: Sequence[ReadRequest], size: int
) -> dict[str, _Timings]:
    """Let the readers take turns, part by part of this size."""
    parts = [requests[begin : begin + size] for begin in range(0, len(requests), size)]
    contestants = {}
    for label, reader in readers.items():
        reader.read(parts[0], n_best=1)  # warm up
        # Each call reads the next part.
        contestants[label] = partial(next, map(partial(reader.read, n_best=1), parts))
    return time_interleaved(contestants, rounds=len(parts), warm_up=0)


def _is_right(question: Question, read: Sequence[AnswerSet]) -> bool:
    [result] = read
    return bool(exact_match(result.text, question.answers, question.answer_profile))


def _token_layers(times: _Timings) -> float:
    return sum(result.reading["token_layers"] for [result] in times.results)
