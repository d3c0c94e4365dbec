"""Flat search beside bare FAISS on the same vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag.bench.common import Timings, question_texts, time_interleaved
from rag.bench.report import Goal, Report, Table
from rag.core.progress import format_seconds

if TYPE_CHECKING:
    from indexers.embedding_shards import EmbeddingShards
    from rag.core.arrays import Float32

FLAT_GOAL = 1.05
_MIN_ROUND_S = 0.1


def bare_flat(embeddings: EmbeddingShards) -> Any:
    """FAISS's own flat index over the same vectors, in memory."""
    import faiss

    index = faiss.IndexFlatIP(embeddings.dim)
    for _, block in embeddings.blocks():
        index.add(block)
    return index


def open_vectors(
    index_dir: Path, questions: Path | None, limit: int, encoder: str | None, precision: str, format: str
) -> tuple[EmbeddingShards, Float32]:
    """The embeddings of an index and queries (n, D): at most `limit` questions by its own encoder, or
    passages with noise.

    Raises:
        ConfigError: the index has no dense part.
    """
    from indexers.index import Index
    from indexers.probes import perturbed_probes
    from retrievers.open import open_encoder

    index = Index.open(index_dir)
    embeddings = index.require_dense().embeddings
    if questions is None:
        return embeddings, perturbed_probes(embeddings, min(1024, len(embeddings)), 0)
    texts = question_texts(questions, limit=limit, format=format)
    return embeddings, open_encoder(index, encoder=encoder, precision=precision).encode_questions(texts)


def _batch(queries: Float32, size: int) -> Float32:
    return np.ascontiguousarray(np.resize(queries, (size, queries.shape[1])))


def time_searches(
    searchers: Mapping[str, Any], queries: Float32, batch_size: int, top_k: int, rounds: int
) -> Timings:
    """Seconds of one batch, searched by all in turn.

    Within a round every contestant repeats the batch the same number of times: until the slowest takes 100
    ms.
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
    index: Path,
    questions: Path | None = None,
    batch_sizes: Sequence[int] = (1, 32, 512),
    top_k: int = 100,
    rounds: int = 15,
    index_encoder: str | None = None,
    precision: str = "auto",
    format: str = "auto",
) -> Report:
    """Flat search against bare FAISS on the same vectors, for questions or noisy passage vectors.

    Args:
        questions: Real queries.
        batch_sizes: Queries searched at once.
        top_k: Number of hits per query.
        rounds: Interleaved rounds; the ratio is of medians.
        index_encoder: Folder of the index's encoder, if it moved.

    Raises:
        ConfigError: the index has no embeddings, or float16 ones, over which there is no flat search.
    """
    import faiss

    from indexers.exact import FlatIndex

    embeddings, queries = open_vectors(index, questions, 2000, index_encoder, precision, format)
    settings = {"index": index, "queries": questions or "noisy passages", "vectors": len(embeddings)}
    report = Report("search", {**settings, "dim": embeddings.dim, "top_k": top_k})
    searchers = {"flat": FlatIndex(embeddings), "bare": bare_flat(embeddings)}
    same = _same_rows(searchers, _batch(queries, min(64, len(queries))), top_k)
    report.figures["same_rows"] = same
    rows = []
    for size in batch_sizes:
        timings = time_searches(searchers, queries, size, top_k, rounds)
        ratio = timings.ratio("flat", "bare")
        medians = [format_seconds(timings.median(name)) for name in searchers]
        rows.append((str(size), *medians, f"{ratio:.3f}", f"{size / timings.median('flat'):,.0f}"))
        report.figures[f"batch_{size}"] = {**timings.to_json(), "ratio": ratio}
        report.goals.append(Goal(f"flat / bare at batch size {size}", ratio.value, "at most", FLAT_GOAL))
    columns = ("batch size", "flat", "bare FAISS", "ratio", "queries/s")
    title = f"one batch, median of {rounds} interleaved rounds, {faiss.omp_get_max_threads()} FAISS threads"
    report.tables.append(Table(title, columns, rows))
    report.notes.append(f"{100 * same:.2f} % of the results are the same rows as bare FAISS finds")
    return report


def _same_rows(searchers: Mapping[str, Any], queries: Float32, top_k: int) -> float:
    first, second = (searcher.search(queries, top_k)[1] for searcher in searchers.values())
    shared = [len(set(a.tolist()) & set(b.tolist())) / len(a) for a, b in zip(first, second, strict=True)]
    return float(np.mean(shared))
