"""Lossy index types beside exact search over the same embeddings: recall, build time, size, search time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexers.presets import INDEX_TYPES
from rag.bench.common import working_folder
from rag.bench.report import Goal, Report, Table, format_bytes, format_interval
from rag.bench.search import bare_flat, open_vectors, time_searches
from rag.core.errors import ConfigError
from rag.core.progress import format_seconds
from rag.metrics.significance import bootstrap

RECALL_GOAL = 0.98
RECALL_KS = (1, 10, 100)
if TYPE_CHECKING:
    from indexers.embeddings import EmbeddingShards
    from indexers.protocols import FloatArray, VectorIndex

LOSSY_TYPES = tuple(kind for kind in INDEX_TYPES if kind != "flat")


def run_lossy_benchmark(
    index: Path,
    questions: Path,
    index_types: Sequence[str] = LOSSY_TYPES,
    batch_sizes: Sequence[int] = (1, 32),
    rounds: int = 9,
    sample: int = 2000,
    index_encoder: str | None = None,
    precision: str = "auto",
    format: str = "auto",
    work_dir: Path | None = None,
) -> Report:
    """Every lossy index type against exact search: recall, build time, size, search time.

    Each is tuned as `rag index` tunes it, on pieces of passages; recall is measured on the real questions.

    Args:
        index: An index with embeddings.
        questions: File of real questions.
        index_types: FAISS index types.
        batch_sizes: Queries searched at once.
        rounds: Interleaved rounds; all types and flat search take part in each.
        sample: maximum number of queries on which recall is measured.
        index_encoder: Folder of the index's encoder, if it moved.

    Raises:
        ConfigError: there are fewer passages than the deepest recall asks for.
    """
    shards, vectors = open_vectors(index, questions, sample, index_encoder, precision, format)
    report = Report("lossy", {"index": index, "questions": questions})
    return compare_lossy(report, shards, vectors, index_types, batch_sizes, rounds, work_dir)


def compare_lossy(
    report: Report,
    embeddings: EmbeddingShards,
    queries: FloatArray,
    index_types: Sequence[str],
    batch_sizes: Sequence[int],
    rounds: int,
    work_dir: Path | None,
) -> Report:
    """Measure every type and return the report."""
    from indexers.exact import FlatIndex, exact_search
    from indexers.faiss_index import build_faiss, open_dense
    from indexers.probes import read_probes

    top_k = max(RECALL_KS)
    if len(embeddings) <= top_k:
        raise ConfigError(
            f"{len(embeddings)} passages are too few for recall@{top_k}", hint="use a larger index"
        )
    counts = {"vectors": len(embeddings), "dim": embeddings.dim, "queries": len(queries)}
    report.settings = {**report.settings, **counts}
    truth, _ = exact_search(embeddings, queries, top_k)
    flat: Any = FlatIndex(embeddings) if embeddings.dtype == "float32" else bare_flat(embeddings)
    searchers: dict[str, Any] = {"flat": flat}
    figures: dict[str, dict[str, Any]] = {"flat": {}}
    with working_folder("lossy", work_dir) as holder:
        for name in index_types:
            place = holder / name
            started = time.perf_counter()
            info = build_faiss(embeddings, place, index_type=name, probes=read_probes(embeddings))
            build_s = time.perf_counter() - started
            searchers[name] = open_dense(place, embeddings)
            recalls = np.stack([_recalls(searchers[name], queries, truth, k) for k in RECALL_KS], axis=1)
            figures[name] = {
                "build_s": build_s,
                "size_bytes": sum(file.stat().st_size for file in place.iterdir() if file.is_file()),
                "effort": info["effort"],
                "over_fetch": info["over_fetch"],
                "recall_at_build": info["recall"],
                **dict(zip((f"recall@{k}" for k in RECALL_KS), bootstrap(recalls), strict=True)),
            }
        for size in batch_sizes:
            timings = time_searches(searchers, queries, size, top_k, rounds)
            for name, found in figures.items():
                found[f"median_s_batch_{size}"] = timings.median(name)
                if name != "flat":
                    found[f"time_ratio_batch_{size}"] = timings.ratio(name, "flat")
        searchers.clear()
    report.figures.update(figures)
    _fill(report, figures, batch_sizes, rounds)
    return report


def _recalls(index: VectorIndex, queries: FloatArray, truth: FloatArray, k: int) -> FloatArray:
    """(n,) share of the true best `k` found; equal scores count as equal."""
    threshold = truth[:, k - 1 : k] - 1e-6 * np.abs(truth[:, k - 1 : k])
    starts = range(0, len(queries), 64)
    scores = np.concatenate([index.search(queries[start : start + 64], k)[0] for start in starts])
    return (scores >= threshold).mean(axis=1).astype(np.float32)


def _fill(
    report: Report, figures: Mapping[str, Mapping[str, Any]], batch_sizes: Sequence[int], rounds: int
) -> None:
    recalls, times = [], []
    for name, found in figures.items():
        medians = [format_seconds(found[f"median_s_batch_{size}"]) for size in batch_sizes]
        if name == "flat":
            times.append((name, *medians, *("1" for _ in batch_sizes)))
            continue
        ratios = [found[f"time_ratio_batch_{size}"] for size in batch_sizes]
        times.append((name, *medians, *map(format_interval, ratios)))
        recalls.append(
            (
                name,
                *(format_interval(found[f"recall@{k}"]) for k in RECALL_KS),
                f"{found['effort']}/{found['over_fetch']}",
                format_seconds(found["build_s"]),
                format_bytes(found["size_bytes"]),
            )
        )
        report.goals += [
            Goal(f"{name} recall@100", found["recall@100"].value, "at least", RECALL_GOAL),
            Goal(f"{name} time / flat, batch size {batch_sizes[0]}", ratios[0].value, "at most", 1.0),
        ]
    columns = ("index type", *(f"recall@{k}" for k in RECALL_KS), "effort/over-fetch", "built in", "on disk")
    title = "recall against exact search, after exact re-ranking [95 % bootstrap]"
    report.tables.append(Table(title, columns, recalls))
    batches = [f"batch {size}" for size in batch_sizes]
    title = f"top-{max(RECALL_KS)} search with re-ranking, median of {rounds} interleaved rounds"
    columns = ("index type", *batches, *(f"/ flat, {batch}" for batch in batches))
    report.tables.append(Table(title, columns, times))
