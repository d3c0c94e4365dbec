"""Lossy index types beside exact search over the same embeddings: recall, build time, size, search time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexers.embeddings import EmbeddingShards, read_probes
from indexers.exact import FlatIndex, exact_search
from indexers.faiss_index import build_faiss, open_dense
from indexers.presets import INDEX_TYPES
from indexers.protocols import FloatArray, VectorIndex
from rag.bench.common import working_folder
from rag.bench.report import Goal, Report, Table, format_bytes, format_interval, format_seconds
from rag.bench.search import bare_flat, time_searches
from rag.core.errors import ConfigError
from rag.metrics.significance import bootstrap

__all__ = ["LOSSY_TYPES", "run_lossy_benchmark"]

RECALL_GOAL = 0.98
RECALL_KS = (1, 10, 100)
LOSSY_TYPES = tuple(kind for kind in INDEX_TYPES if kind != "flat")


def run_lossy_benchmark(
    embeddings: EmbeddingShards,
    queries: FloatArray,
    *,
    index_types: Sequence[str] = LOSSY_TYPES,
    batch_sizes: Sequence[int] = (1, 32),
    rounds: int = 9,
    max_recall_queries: int = 2000,
    work_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Report:
    """Build every lossy index type from the same embeddings and compare it with exact search.

    Each is tuned as `rag index` tunes it, on pieces of passages; recall is measured on the real `queries`.

    Args:
        embeddings: shards of an index.
        queries: (n, D) float32 vectors of real questions.
        index_types: names from `indexers.presets`.
        batch_sizes: queries searched at once.
        rounds: interleaved rounds; all types and flat search take part in each.
        max_recall_queries: recall is measured on at most this many.
        work_dir: where the indexes are built; the system's temporary folder by default. Removed afterwards.
        settings: printed with the table.

    Raises:
        ConfigError: there are fewer passages than the deepest recall asks for.
    """
    top_k = max(RECALL_KS)
    if len(embeddings) <= top_k:
        raise ConfigError(
            f"{len(embeddings)} passages are too few for recall@{top_k}", hint="use a larger index"
        )
    report = Report(
        "lossy",
        {**(settings or {}), "vectors": len(embeddings), "dim": embeddings.dim, "queries": len(queries)},
    )
    asked = np.ascontiguousarray(queries[:max_recall_queries])
    truth, _ = exact_search(embeddings, asked, top_k)
    flat: Any = FlatIndex(embeddings) if embeddings.dtype == "float32" else bare_flat(embeddings)
    searchers: dict[str, Any] = {"flat": flat}
    figures: dict[str, dict[str, Any]] = {}
    with working_folder("lossy", work_dir) as holder:
        for name in index_types:
            place = holder / name
            started = time.perf_counter()
            info = build_faiss(embeddings, place, index_type=name, probes=read_probes(embeddings))
            build_s = time.perf_counter() - started
            searchers[name] = open_dense(place, embeddings)
            size_bytes = sum(file.stat().st_size for file in place.iterdir() if file.is_file())
            recalls = bootstrap(
                np.stack([_recalls(searchers[name], asked, truth, k) for k in RECALL_KS], axis=1)
            )
            figures[name] = {
                "build_s": build_s,
                "size_bytes": size_bytes,
                "effort": info["effort"],
                "over_fetch": info["over_fetch"],
                "recall_at_build": info["recall"],
                **{f"recall@{k}": interval for k, interval in zip(RECALL_KS, recalls, strict=True)},
            }
        for size in batch_sizes:
            timings = time_searches(searchers, queries, size, top_k, rounds)
            for name in index_types:
                figures[name][f"time_ratio_batch_{size}"] = timings.ratio(name, "flat")
                figures[name][f"median_s_batch_{size}"] = timings.median(name)
            figures.setdefault("flat", {})[f"median_s_batch_{size}"] = timings.median("flat")
        searchers.clear()
    report.figures.update(figures)
    _fill_lossy(report, figures, index_types, batch_sizes, rounds)
    return report


def _recalls(index: VectorIndex, queries: FloatArray, truth: FloatArray, k: int) -> FloatArray:
    """(n,) share of the true best `k` found; equal scores count as equal."""
    threshold = truth[:, k - 1 : k]
    found = [
        (
            index.search(queries[start : start + 64], k)[0]
            >= (t := threshold[start : start + 64]) - 1e-6 * np.abs(t)
        )
        for start in range(0, len(queries), 64)
    ]
    return np.concatenate(found).mean(axis=1).astype(np.float32)


def _fill_lossy(
    report: Report,
    figures: Mapping[str, Mapping[str, Any]],
    index_types: Sequence[str],
    batch_sizes: Sequence[int],
    rounds: int,
) -> None:
    rows = [
        (
            name,
            *(format_interval(figures[name][f"recall@{k}"]) for k in RECALL_KS),
            f"{figures[name]['effort']}/{figures[name]['over_fetch']}",
            format_seconds(figures[name]["build_s"]),
            format_bytes(figures[name]["size_bytes"]),
        )
        for name in index_types
    ]
    columns = ("index type", *(f"recall@{k}" for k in RECALL_KS), "effort/over-fetch", "built in", "on disk")
    report.tables.append(
        Table("recall against exact search, after exact re-ranking [95 % bootstrap]", columns, rows)
    )
    times = [
        (
            name,
            *(format_seconds(figures[name][f"median_s_batch_{size}"]) for size in batch_sizes),
            *(format_interval(figures[name][f"time_ratio_batch_{size}"]) for size in batch_sizes),
        )
        for name in index_types
    ]
    flat = ("flat", *(format_seconds(figures["flat"][f"median_s_batch_{size}"]) for size in batch_sizes))
    times.insert(0, (*flat, *("1" for _ in batch_sizes)))
    columns = (
        "index type",
        *(f"batch {s}" for s in batch_sizes),
        *(f"/ flat, batch {s}" for s in batch_sizes),
    )
    title = f"top-{max(RECALL_KS)} search with re-ranking, median of {rounds} interleaved rounds"
    report.tables.append(Table(title, columns, times))
    first = batch_sizes[0]
    for name in index_types:
        report.goals.append(
            Goal(f"{name} recall@100", figures[name]["recall@100"].value, "at least", RECALL_GOAL)
        )
        ratio = figures[name][f"time_ratio_batch_{first}"].value
        report.goals.append(Goal(f"{name} time / flat, batch size {first}", ratio, "at most", 1.0))
