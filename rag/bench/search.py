"""Flat search beside bare FAISS on the same vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.exact import FlatIndex, perturbed_probes
from indexers.protocols import FloatArray
from rag.bench.common import Timings, sample_questions, time_interleaved
from rag.bench.report import Goal, Report, Table, format_interval, format_seconds
from rag.core.errors import ConfigError

__all__ = ["bare_flat", "open_vectors", "run_search_benchmark", "time_searches"]

FLAT_GOAL = 1.05
_MIN_ROUND_S = 0.1


class _Bare:
    """`IndexFlatIP` with the search signature of `VectorIndex`."""

    def __init__(self, index: faiss.Index) -> None:
        self.index = index

    def search(self, queries: FloatArray, top_k: int) -> Any:
        return self.index.search(queries, top_k)


def bare_flat(embeddings: EmbeddingShards) -> _Bare:
    """FAISS's own flat index over the same vectors, in memory."""
    index = faiss.IndexFlatIP(embeddings.dim)
    for _, block in embeddings.blocks():
        index.add(block)
    return _Bare(index)


def open_vectors(
    index_dir: str | Path,
    questions_path: str | Path | None,
    *,
    encoder: str | None = None,
    precision: str = "auto",
    format: str = "auto",
    limit: int | None = 2000,
) -> tuple[EmbeddingShards, FloatArray | None]:
    """The embeddings of an index, and the vectors (n, D) of questions made by its own encoder.

    Args:
        index_dir: an index with embeddings.
        questions_path: questions to encode; None for no queries.
        encoder: folder of the index's encoder, if it moved.
        precision: "auto", "fp32" or "bf16".
        format: of the question file.
        limit: at most this many questions.

    Raises:
        ConfigError: the index has no dense part.
    """
    from indexers.index import Index
    from retrievers.open import open_encoder

    index = Index.open(index_dir)
    if index.embeddings is None:
        raise ConfigError(
            f"{index_dir} has no embeddings", hint="build it with `rag index … --retriever dense`"
        )
    if questions_path is None:
        return index.embeddings, None
    texts = [
        question.text for question in sample_questions(questions_path, limit=limit, seed=0, format=format)
    ]
    loaded = open_encoder(index, encoder=encoder, precision=precision)
    return index.embeddings, loaded.encode_questions(texts)


def _batch(queries: FloatArray, size: int) -> FloatArray:
    return np.ascontiguousarray(np.resize(queries, (size, queries.shape[1])))


def time_searches(
    searchers: Mapping[str, Any], queries: FloatArray, batch_size: int, top_k: int, rounds: int
) -> Timings:
    """Seconds of one batch, searched by all in turn.

    Within a round a batch is repeated, the same number of times by everyone, until the slowest takes 100 ms.
    """
    batches = [
        _batch(np.roll(queries, -shift, axis=0), batch_size) for shift in range(0, 4 * batch_size, batch_size)
    ]
    slowest = 0.0
    for searcher in searchers.values():
        searcher.search(batches[0], top_k)
        started = time.perf_counter()
        searcher.search(batches[1], top_k)
        slowest = max(slowest, time.perf_counter() - started)
    repeats = max(1, int(np.ceil(_MIN_ROUND_S / max(slowest, 1e-6))))

    def search(searcher: Any) -> Callable[[], None]:
        def run() -> None:
            for number in range(repeats):
                searcher.search(batches[number % len(batches)], top_k)

        return run

    timings = time_interleaved({name: search(one) for name, one in searchers.items()}, rounds=rounds)
    return Timings({name: tuple(s / repeats for s in values) for name, values in timings.seconds.items()})


def run_search_benchmark(
    embeddings: EmbeddingShards,
    queries: FloatArray | None = None,
    *,
    batch_sizes: Sequence[int] = (1, 32, 512),
    top_k: int = 100,
    rounds: int = 15,
    settings: Mapping[str, Any] | None = None,
) -> Report:
    """Time flat search against bare `faiss.IndexFlatIP` on the same float32 vectors.

    Args:
        embeddings: float32 shards of an index.
        queries: (n, D) float32; noisy passage vectors if None.
        batch_sizes: queries searched at once.
        top_k: results wanted.
        rounds: interleaved rounds; the ratio is of medians.
        settings: printed with the table.

    Raises:
        ConfigError: the embeddings are float16, so there is no flat search over them.
    """
    if queries is None:
        queries = perturbed_probes(embeddings, min(1024, len(embeddings)), 0)
    report = Report(
        "search", {**(settings or {}), "vectors": len(embeddings), "dim": embeddings.dim, "top_k": top_k}
    )
    searchers = {"flat": FlatIndex(embeddings), "bare": bare_flat(embeddings)}
    report.figures["same_rows"] = _same_rows(searchers, _batch(queries, min(64, len(queries))), top_k)
    rows = []
    for size in batch_sizes:
        timings = time_searches(searchers, queries, size, top_k, rounds)
        ratio = timings.ratio("flat", "bare")
        rows.append(
            (
                str(size),
                *(format_seconds(timings.median(name)) for name in searchers),
                format_interval(ratio),
                f"{size / timings.median('flat'):,.0f}",
            )
        )
        report.figures[f"batch_{size}"] = {**timings.to_json(), "ratio": ratio}
        report.goals.append(Goal(f"flat / bare at batch size {size}", ratio.value, "at most", FLAT_GOAL))
    columns = ("batch size", "flat", "bare FAISS", "ratio", "queries/s")
    title = f"one batch, median of {rounds} interleaved rounds, {faiss.omp_get_max_threads()} FAISS threads"
    report.tables.append(Table(title, columns, rows))
    report.notes.append(
        f"{100 * report.figures['same_rows']:.2f} % of the results are the same rows as bare FAISS finds"
    )
    return report


def _same_rows(searchers: Mapping[str, Any], queries: FloatArray, top_k: int) -> float:
    first, second = (searcher.search(queries, top_k)[1] for searcher in searchers.values())
    shared = [len(set(a.tolist()) & set(b.tolist())) / len(a) for a, b in zip(first, second, strict=True)]
    return float(np.mean(shared))
