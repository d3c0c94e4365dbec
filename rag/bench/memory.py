"""Memory of a serving process after real questions, against the planner's estimate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexers.presets import PLAID
from indexers.settings import BuildSettings
from rag.bench.common import question_texts
from rag.bench.process import memory_of
from rag.bench.report import Goal, Report, Table, format_bytes
from rag.bench.server_process import ServerProcess, post_json, server_arguments
from rag.core.errors import ConfigError
from rag.core.progress import Progress

if TYPE_CHECKING:
    from indexers.plan import Plan

PLAN_GOAL = 0.15
_PARTS = {
    "rss": "resident (RSS)",
    "anonymous": "  its own data (anonymous)",
    "file_backed": "  mapped files (index, libraries)",
    "private": "private to the process",
}


def run_memory_benchmark(
    index: Path,
    questions: Path,
    n: int = 500,
    top_k: int = 20,
    retriever: str = "auto",
    reader: str | None = None,
    precision: str = "auto",
    format: str = "auto",
) -> Report:
    """Memory of a serving process after real questions, asked one by one, against the planner's figure.

    Args:
        questions: Question file: SQuAD, DPR, JSONL … (.gz too); used again if there are fewer than `n`.
        n: Questions to ask.
        top_k: Passages to read.

    Raises:
        ConfigError: `n` is below 1.
        ResourceError: the system does not tell a process's memory (only Linux does), or the server fails.
    """
    if n < 1:
        raise ConfigError(f"--n is {n}, expected at least 1")
    texts = question_texts(questions, format=format)
    shown = {"index": index, "questions": questions, "n": n, "top_k": top_k, "retriever": retriever}
    report = Report("memory", shown)
    with (
        ServerProcess(index, arguments=server_arguments(retriever, reader, precision)) as server,
        Progress(n, "questions", "memory") as progress,
        closing(HTTPConnection(server.host, server.port, timeout=300)) as connection,
    ):
        before = memory_of(server.pid)
        for number in range(n):
            post_json(connection, "/v1/ask", {"question": texts[number % len(texts)], "top_k": top_k})
            progress.update()
        after = memory_of(server.pid)
    fill_memory(report, before, after, n, plan_of_serving(index, retriever, reader, precision, n, top_k))
    return report


def plan_of_serving(
    index_dir: Path, retriever: str, reader: str | None, precision: str, questions: int, top_k: int
) -> Plan:
    """The planner's figures for serving this index, from its sizes and the models' weights alone."""
    from indexers.index import Index
    from indexers.plan import plan
    from retrievers.hybrid import DEFAULT_DEPTH
    from retrievers.open import named_kind, open_encoder, parse_kind

    with Index.open(index_dir) as index:
        kind, options = parse_kind(named_kind(retriever, index))
        words = kind in ("bm25", "hybrid") or getattr(options, "first", "dense") != "dense"
        dense = index.manifest.get("dense", {})
        given: dict[str, Any] = {"retriever": "bm25" if kind == "bm25" else "hybrid" if words else "dense"}
        if kind != "bm25" and index.tokens is not None:
            given.update(index_type=PLAID, token_bits=index.tokens.info["bits"])
        elif kind != "bm25":
            given.update(index_type=dense["index_type"], dtype=index.manifest["embeddings"]["dtype"])
        load_encoder = None if kind == "bm25" else partial(open_encoder, index, precision=precision)
        step = max(1, len(index.passages) // 1000)
        sample = index.passages.get_many(range(0, len(index.passages), step))
        return plan(
            len(index.passages),
            index.manifest["encoder"]["dim"] if kind != "bm25" else 1,
            settings=BuildSettings(**given),
            passage_bytes=sum(len((p.title + p.text).encode()) for p in sample) / len(sample),
            id_bytes=sum(len(p.id.encode()) for p in sample) / len(sample),
            model_bytes=loaded_model_bytes(load_encoder, reader=reader, precision=precision),
            questions=questions,
            top_k=top_k if kind != "hybrid" else max(top_k, DEFAULT_DEPTH),
            over_fetch=dense.get("over_fetch"),
        )


def loaded_model_bytes(
    load_encoder: Callable[[], Any] | None, *, reader: str | None = None, precision: str = "auto"
) -> float:
    """Bytes of the tensors that a serving process needs for its models, measured by loading them.

    Args:
        load_encoder: returns the bi-encoder; None if the server has none.
        reader: folder or name of the reader; the one in the package by default.
    """
    from readers.extractive.reader import ExtractiveReader

    before = _tensor_bytes()
    loaded: list[Any] = [ExtractiveReader.load(reader, precision=precision)]
    if load_encoder is not None:
        encoder = load_encoder()
        several = encoder.identity.pooling == "tokens"
        ask = encoder.question_tokens if several else encoder.encode_questions
        ask(["Is everything loaded?"])  # weights are loaded with the first text
        loaded.append(encoder)
    return float(_tensor_bytes() - before)


def _tensor_bytes() -> int:
    import gc

    import torch

    gc.collect()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or thing.device.type != "cpu":
            continue
        try:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        except NotImplementedError:  # packed for the processor: no storage to look at
            storages[-id(thing)] = thing.nelement() * thing.element_size()
    return sum(storages.values())


def fill_memory(report: Report, before: dict[str, int], after: dict[str, int], n: int, planned: Plan) -> None:
    """Memory before and after the questions beside the plan, as figures and tables."""
    rows = [(label, format_bytes(before[key]), format_bytes(after[key])) for key, label in _PARTS.items()]
    columns = ("", "when ready", f"after {n} questions")
    report.tables.append(Table("memory of the serving process", columns, rows))
    parts = [(name, format_bytes(size)) for name, size in planned.serving_bytes.items()]
    parts.append(("total", format_bytes(planned.serving_total_bytes)))
    report.tables.append(Table(f"the planner's estimate for {n} questions", ("", "memory"), parts))
    ratio = after["rss"] / planned.serving_total_bytes
    report.figures.update(when_ready=before, after_questions=after, measured_over_planned=ratio)
    report.figures["planned_bytes"] = planned.serving_bytes
    report.figures["planned_total_bytes"] = planned.serving_total_bytes
    report.goals.append(Goal("distance from the planner's figure", abs(ratio - 1.0), "at most", PLAN_GOAL))
    report.notes.append(f"resident memory is {100 * ratio:.0f} % of the planner's figure")
