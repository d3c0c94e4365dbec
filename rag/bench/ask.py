"""Whole questions, reading included, by retriever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from rag.bench.common import question_texts, time_interleaved
from rag.bench.report import Report, Table, format_interval
from rag.core.progress import StageTimer
from rag.pipeline import Pipeline


def run_ask_benchmark(
    index: Path,
    questions: Path,
    retrievers: Sequence[str] = ("dense", "multihop"),
    read: bool = True,
    reader: str | None = None,
    effort: str | None = None,
    sample: int = 50,
    top_k: int = 20,
    precision: str = "auto",
    format: str = "auto",
) -> Report:
    """Time of one question at a time, from its text to its answers, by retriever and stage.

    All retrievers take turns at every question.

    Args:
        questions: File of questions.
        retrievers: As for `rag ask`, options and all; the others are compared with the first.
        read: Read what was found, too.
        reader: Folder of a reader; default: the shipped one.
        effort: Effort of reading; default: the reader's own.
        top_k: Passages to find and read.
        precision: auto, fp32, bf16 or int8.

    Raises:
        ConfigError: a retriever or an effort is not known, or the index lacks what a retriever needs.
    """
    texts, names = question_texts(questions, limit=sample, format=format), _joined(retrievers)
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with ExitStack() as stack:

        def contestant(name: str) -> Callable[[], None]:
            pipeline = Pipeline.open(
                index, retriever=name, reader=reader if read else False, precision=precision, effort=effort
            )
            stack.callback(pipeline.close)
            turns = iter([texts[0], *texts])  # the first warms up

            def run() -> None:
                timer = StageTimer()
                if read:
                    stages[name].append(dict(pipeline.ask(next(turns), top_k=top_k).timings_ms))
                else:
                    pipeline.retrieve([next(turns)], top_k, timer=timer)
                    stages[name].append(timer.timings_ms)

            return run

        timings = time_interleaved({name: contestant(name) for name in names}, rounds=len(texts))
    settings = {
        "index": index, "questions": questions, "sample": len(texts), "top_k": top_k,
        "reader": (reader or "shipped") if read else "none", "effort": effort or "default",
    }  # fmt: skip
    report, rows = Report("ask", settings), []
    for name in names:
        ratio, milliseconds = timings.ratio(name, names[0]), 1000 * np.array(timings.seconds[name])
        by_stage = _medians(stages[name][1:])
        report.figures[name] = {
            "p50_ms": float(np.median(milliseconds)), "mean_ms": float(milliseconds.mean()),
            "p95_ms": float(np.quantile(milliseconds, 0.95)), "ratio": ratio, "stages_ms": by_stage,
        }  # fmt: skip
        times = [f"{report.figures[name][key]:.0f}" for key in ("p50_ms", "mean_ms", "p95_ms")]
        parts = ", ".join(f"{stage} {ms:.0f}" for stage, ms in by_stage.items() if stage != "total")
        rows.append((name, *times, format_interval(ratio), parts))
    columns = ("retriever", "median ms", "mean", "p95", f"× {names[0]}", "median ms of each stage")
    title = "one question at a time; ratio of medians [95 % bootstrap interval over questions]"
    report.tables.append(Table(title, columns, rows))
    return report


def _joined(parts: Iterable[str]) -> list[str]:
    """Retrievers from text that was cut at every comma: "stop=never" belongs to what stands before it.

    Example:
        >>> _joined(["dense", "multihop:beam=5", "stop=never", "hybrid"])
        ['dense', 'multihop:beam=5,stop=never', 'hybrid']
    """
    names: list[str] = []
    for part in parts:
        if names and "=" in part.partition(":")[0]:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return list(dict.fromkeys(names))


def _medians(timings: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Median of each stage; a question that had no such stage counts 0."""
    stages = dict.fromkeys(stage for one in timings for stage in one)
    return {stage: float(np.median([one.get(stage, 0.0) for one in timings])) for stage in stages}
