"""Searches in vectors by index type, beside FAISS's exact search: recall, build time, size, time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from indexers.settings import INDEX_TYPES
from rag.bench.common import check_counts, ratio, time_interleaved
from rag.bench.report import Report
from rag.core.errors import ConfigError

if TYPE_CHECKING:
    from indexers.embeddings import EmbeddingShards
    from rag.core.arrays import Float32

    class _Searcher(Protocol):
        def search(self, queries: Float32, top_k: int, /) -> object: ...


LOSSY_TYPES = tuple(kind for kind in INDEX_TYPES if kind != "flat")
_TOP_K = 100
_MIN_ROUND_S = 0.1
_MOST_FLAT = 1_000_000  # vectors that are also searched one by one
_FAISS = "FAISS IndexFlatIP"


def run_search_benchmark(
    index: Path,
    index_types: Sequence[str] = LOSSY_TYPES,
    batch_sizes: Sequence[int] = (1, 32),
    rounds: int = 9,
) -> Report:
    """Index types against exact search and against FAISS alone: recall, build time, size, search
    time.

    Each is tuned and its recall measured as `rag index` does it, on pieces of passages. Exact
    search (`flat`) and FAISS's take part where there are at most a million vectors.

    Args:
        index: An index with embeddings.
        index_types: Lossy index types.
        batch_sizes: Queries searched at once.
        rounds: Interleaved rounds; all types and flat search take part in each.

    Raises:
        ConfigError: the index has no vectors, or hardly any.
    """
    from indexers.index import Index

    check_counts(batch_sizes)
    shards = Index.open(index).require_dense().embeddings
    report = compare_searches(shards, index_types, batch_sizes, rounds)
    report.settings["index"] = index
    return report


def compare_searches(
    embeddings: EmbeddingShards,
    index_types: Sequence[str],
    batch_sizes: Sequence[int],
    rounds: int,
) -> Report:
    """Measure every type and return the report."""
    import faiss

    from indexers.exact import FlatIndex
    from indexers.faiss_build import build_faiss
    from indexers.faiss_index import open_dense
    from indexers.probes import read_probes

    if len(embeddings) <= _TOP_K:
        raise ConfigError(
            f"{len(embeddings)} passages are too few to search for the best {_TOP_K}",
            hint="use a larger index",
        )
    settings: dict[str, object] = {"vectors": len(embeddings), "dim": embeddings.dim}
    title = f"top-{_TOP_K} search with re-ranking, median of {rounds} interleaved rounds"
    report = Report("search", settings, title)
    probes = read_probes(embeddings)
    searchers: dict[str, _Searcher] = {}
    if len(embeddings) <= _MOST_FLAT:
        bare = faiss.IndexFlatIP(embeddings.dim)
        for _, block in embeddings.blocks():
            bare.add(block)
        searchers[_FAISS] = bare
        if embeddings.dtype == "float32":
            searchers["flat"] = FlatIndex(embeddings)
    report.rows = {name: {} for name in (*searchers, *index_types)}
    with tempfile.TemporaryDirectory(prefix="rag-search-") as holder:
        for name in index_types:
            folder = Path(holder) / name
            started = time.perf_counter()
            info = build_faiss(embeddings, folder, index_type=name, probes=probes)
            build_s = time.perf_counter() - started
            searchers[name] = open_dense(folder, embeddings, info)
            sizes = [file.stat().st_size for file in folder.iterdir() if file.is_file()]
            report.rows[name] = {
                **{f"recall@{k}": recall for k, recall in info.recall.items()},
                "effort": str(info.effort),
                "over-fetch": str(info.over_fetch),
                "built in s": build_s,
                "MB on disk": sum(sizes) / 1e6,
            }
        for size in batch_sizes:
            _add_times(report, searchers, probes, size, rounds)
        searchers.clear()
    return report


def _add_times(
    report: Report,
    searchers: dict[str, _Searcher],
    queries: Float32,
    batch_size: int,
    rounds: int,
) -> None:
    """Time a batch of this size, searched by all in turn; the ratio is to FAISS's exact search.

    Within a round every contestant repeats the batch the same number of times: until the slowest
    takes 100 ms.
    """
    shape = (batch_size, queries.shape[1])
    batches = [np.resize(np.roll(queries, -turn * batch_size, axis=0), shape) for turn in range(4)]
    slowest = 0.0
    for searcher in searchers.values():
        _search(searcher, batches[:1], 1)
        started = time.perf_counter()
        _search(searcher, batches[1:], 1)
        slowest = max(slowest, time.perf_counter() - started)
    repeats = max(1, int(np.ceil(_MIN_ROUND_S / max(slowest, 1e-6))))
    runs: dict[str, Callable[[], None]] = {}
    for name, searcher in searchers.items():
        runs[name] = partial(_search, searcher, batches, repeats)
    timings = time_interleaved(runs, rounds=rounds)
    for name, seconds in timings.items():
        row = report.rows[name]
        row[f"ms, batch {batch_size}"] = 1000 * float(np.median(seconds)) / repeats
        if _FAISS in timings:
            row[f"/ FAISS, batch {batch_size}"] = ratio(seconds, timings[_FAISS])


def _search(searcher: _Searcher, batches: Sequence[Float32], repeats: int) -> None:
    for number in range(repeats):
        searcher.search(batches[number % len(batches)], _TOP_K)
