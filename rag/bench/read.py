"""Reading: time and exact match by effort and precision."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rag.bench.common import percentile, ratio_of_means
from rag.bench.report import Figure, Report
from rag.core.log import Progress
from rag.core.types import AnswerSet, Question
from rag.data.text import exact_match
from rag.metrics.significance import bootstrap

if TYPE_CHECKING:
    from rag.core.types import RankedPassages
    from readers.protocols import Reader


@dataclass(slots=True)
class _Contestant:
    """A reader, and its measurements of each question.

    Attributes:
        alone_s, alone_cpu_s, token_layers, right: read alone: time, processor time of all threads,
            cost, whether the answer matched.
        batched_s: time per question, read in a batch.
    """

    reader: Reader
    alone_s: list[float] = field(default_factory=list)
    alone_cpu_s: list[float] = field(default_factory=list)
    token_layers: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    batched_s: list[float] = field(default_factory=list)

    def read(
        self, questions: Sequence[Question], ranked: Sequence[RankedPassages], *, batched: bool
    ) -> None:
        """Read a question alone, or a batch, and note what it took."""
        started = time.perf_counter()
        cpu_before = time.process_time()
        answers = self.answer(questions, ranked)
        seconds = time.perf_counter() - started
        if batched:
            self.batched_s += [seconds / len(questions)] * len(questions)
            return
        self.alone_s.append(seconds)
        self.alone_cpu_s.append(time.process_time() - cpu_before)
        [question] = questions
        [result] = answers
        best = result.answers[0].text if result.answers else ""
        self.right.append(exact_match(best, question.answers, question.answer_profile))
        if "token_layers" in result.reading:
            self.token_layers.append(result.reading["token_layers"])

    def answer(
        self, questions: Sequence[Question], ranked: Sequence[RankedPassages]
    ) -> list[AnswerSet]:
        """The best answer to each question."""
        from readers.protocols import ReadRequest

        texts = [question.text for question in questions]
        return self.reader.read(list(map(ReadRequest, texts, ranked)), n_best=1)

    def figures(self, first: str, base: _Contestant) -> dict[str, Figure]:
        """A row of the table, beside the contestant called `first`."""
        row: dict[str, Figure] = {
            "ms a question": 1000 * float(np.mean(self.alone_s)),
            "95 %": 1000 * float(np.quantile(self.alone_s, 0.95)),
            "median processor ms": percentile(self.alone_cpu_s, 50).times(1000),
            f"processor / {first}": ratio_of_means(self.alone_cpu_s, base.alone_cpu_s),
            f"× {first}": ratio_of_means(base.alone_s, self.alone_s),
            "EM": bootstrap(self.right)[0].times(100),
        }
        if self.token_layers:
            share = np.mean(self.token_layers) / np.mean(base.token_layers)
            row["token-layers, %"] = 100 * float(share)
        if self.batched_s:
            row["ms in batches"] = 1000 * float(np.mean(self.batched_s))
            gain = np.mean(base.batched_s) / np.mean(self.batched_s)
            row[f"× {first} in batches"] = float(gain)
        return row


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
    from readers.open import open_reader

    drawn = draw_sample(read_questions(questions), sample, 0)
    with Pipeline.open(index, retriever=retriever, reader=False) as pipeline:
        ranked = pipeline.retrieve_many([question.text for question in drawn], top_k)
    contestants: dict[str, _Contestant] = {}
    for effort, name in product(efforts, precision):
        label = effort if len(precision) == 1 else f"{effort}, {name}"
        contestants[label] = _Contestant(open_reader(reader, precision=name, effort=effort))
    settings: dict[str, object] = {
        "index": index,
        "questions": questions,
        "sample": len(drawn),
        "top_k": top_k,
        "reader": reader or "shipped",
        "retriever": retriever,
        "batch_size": batch_size,
    }
    _measure(list(contestants.values()), drawn, ranked, batch_size)
    report = Report("read", settings, "reading [over questions]")
    first, base = next(iter(contestants.items()))
    for label, contestant in contestants.items():
        report.rows[label] = contestant.figures(first, base)
    return report


def _measure(
    contestants: list[_Contestant],
    questions: Sequence[Question],
    ranked: Sequence[RankedPassages],
    batch_size: int,
) -> None:
    """Contestants take turns question by question, then batch by batch, every second time in
    reverse.
    """
    for contestant in contestants:  # warm up
        contestant.answer(questions[:1], ranked[:1])
    sizes = sorted({1, batch_size})
    with Progress(len(sizes) * len(questions), "questions", "read") as progress:
        for size in sizes:
            for begin in range(0, len(questions), size):
                part = questions[begin : begin + size]
                for contestant in contestants:
                    contestant.read(part, ranked[begin : begin + size], batched=size > 1)
                contestants.reverse()
                progress.update(len(part))
