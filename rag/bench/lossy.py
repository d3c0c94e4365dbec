"""Lossy index types beside exact search over the same embeddings: recall, build time, size, search time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexers.presets import INDEX_TYPES
from rag.bench.common import leave_cache, working_folder
from rag.bench.report import Goal, Report, Table, format_bytes
from rag.bench.search import bare_flat, open_vectors, time_searches
from rag.core.errors import ConfigError
from rag.core.npy import save_npy
from rag.core.progress import format_seconds
from rag.metrics.significance import bootstrap

RECALL_GOAL, BARE_GOAL = 0.95, 1.10
RECALL_KS = (1, 10, 20, 100)
if TYPE_CHECKING:
    from indexers.embedding_shards import EmbeddingShards
    from indexers.protocols import VectorIndex
    from rag.core.arrays import Float32

_MOST_FLAT = 1_000_000  # vectors that are also searched one by one
_COLD = 50  # questions that are timed with the files out of the page cache
LOSSY_TYPES = tuple(kind for kind in INDEX_TYPES if kind != "flat")


def run_lossy_benchmark(
    index: Path,
    questions: Path,
    index_types: Sequence[str] = LOSSY_TYPES,
    batch_sizes: Sequence[int] = (1, 32),
    rounds: int = 9,
    sample: int = 2000,
    rows: int = 0,
    noise: float = 0.5,
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
        rows: Size to which the vectors are multiplied: each is a stored one with noise.
        noise: Length of the noise, beside that of the vector.
        index_encoder: Folder of the index's encoder, if it moved.

    Raises:
        ConfigError: there are fewer passages than the deepest recall asks for.
    """
    shards, vectors = open_vectors(index, questions, sample, index_encoder, precision, format)
    report = Report("lossy", {"index": index, "questions": questions})
    if not rows:
        return compare_lossy(report, shards, vectors, index_types, batch_sizes, rounds, work_dir)
    report.settings = {**report.settings, "rows": rows, "noise": noise}
    with working_folder("lossy-vectors", work_dir) as folder:
        many = multiplied(shards, folder, rows, noise)
        return compare_lossy(report, many, vectors, index_types, batch_sizes, rounds, work_dir)


def multiplied(embeddings: EmbeddingShards, folder: Path, rows: int, noise: float) -> EmbeddingShards:
    """`rows` vectors of unit length in float16, in `folder`: random stored ones with noise around them."""
    from indexers.embeddings import EmbeddingWriter
    from indexers.probes import PROBES_NAME, perturbed_probes

    stored = embeddings.rows(np.arange(len(embeddings)))
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)

    def make(start: int, stop: int) -> Float32:
        random = np.random.default_rng([0, start])
        around = random.standard_normal((stop - start, embeddings.dim), np.float32)
        around *= noise / np.sqrt(embeddings.dim)
        around += stored[random.integers(0, len(stored), stop - start)]
        vectors: Float32 = around / np.linalg.norm(around, axis=1, keepdims=True)
        return vectors

    writer = EmbeddingWriter(folder, rows=rows, encoder=embeddings.encoder, dtype="float16")

    def write(done: Callable[[int], None]) -> None:
        for written in writer.write_missing(make):
            done(written)

    made = writer.completed(write)
    save_npy(folder / PROBES_NAME, perturbed_probes(made, min(256, rows), 0))
    return made


def compare_lossy(
    report: Report,
    embeddings: EmbeddingShards,
    queries: Float32,
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
    searchers: dict[str, Any] = {}
    figures: dict[str, dict[str, Any]] = {}
    if len(embeddings) <= _MOST_FLAT:
        is_stored = embeddings.dtype == "float32"
        searchers["flat"] = FlatIndex(embeddings) if is_stored else bare_flat(embeddings)
        figures["flat"] = {}
    with working_folder("lossy", work_dir) as holder:
        for name in index_types:
            place = holder / name
            started = time.perf_counter()
            info = build_faiss(embeddings, place, index_type=name, probes=read_probes(embeddings))
            build_s = time.perf_counter() - started
            for file in (place, embeddings.directory):
                leave_cache(file)
            searchers[name] = open_dense(place, embeddings)
            cold_s = [_timed(searchers[name], query[None], top_k) for query in queries[:_COLD]]
            recalls = np.stack([_recalls(searchers[name], queries, truth, k) for k in RECALL_KS], axis=1)
            searchers[f"{name}, FAISS alone"] = Bare(place, info)
            figures[name] = {
                "build_s": build_s,
                "size_bytes": sum(file.stat().st_size for file in place.iterdir() if file.is_file()),
                "effort": info["effort"],
                "over_fetch": info["over_fetch"],
                "recall_at_build": info["recall"],
                "cold_s": float(np.median(cold_s)),
                **dict(zip((f"recall@{k}" for k in RECALL_KS), bootstrap(recalls), strict=True)),
            }
        for size in batch_sizes:
            timings = time_searches(searchers, queries, size, top_k, rounds)
            for name, found in figures.items():
                found[f"median_s_batch_{size}"] = timings.median(name)
                if name != "flat":
                    found[f"bare_ratio_batch_{size}"] = timings.ratio(name, f"{name}, FAISS alone")
                    if "flat" in searchers:
                        found[f"time_ratio_batch_{size}"] = timings.ratio(name, "flat")
        searchers.clear()
    report.figures.update(figures)
    _fill(report, figures, batch_sizes, rounds)
    return report


class Bare:
    """FAISS's own search of an index file: the candidates of a search, without re-ranking."""

    def __init__(self, place: Path, info: Mapping[str, Any]) -> None:
        from indexers.faiss_index import open_faiss

        self._index = open_faiss(place, info)
        self._over_fetch, self._effort = info["over_fetch"], info["effort"]

    def search(self, queries: Float32, top_k: int) -> Any:
        """Scores and rows of the candidates for the best `top_k`."""
        from indexers.exact import CANDIDATE_MARGIN
        from indexers.faiss_index import search_parameters

        wanted = min(top_k * self._over_fetch + CANDIDATE_MARGIN, self._index.ntotal)
        return self._index.search(
            queries, wanted, params=search_parameters(self._index, self._effort, wanted)
        )


def _timed(index: VectorIndex, query: Float32, top_k: int) -> float:
    started = time.perf_counter()
    index.search(query, top_k)
    return time.perf_counter() - started


def _recalls(index: VectorIndex, queries: Float32, truth: Float32, k: int) -> Float32:
    """(n,) share of the true best `k` found; equal scores count as equal."""
    threshold = truth[:, k - 1 : k] - 1e-6 * np.abs(truth[:, k - 1 : k])
    starts = range(0, len(queries), 64)
    scores = np.concatenate([index.search(queries[start : start + 64], k)[0] for start in starts])
    return (scores >= threshold).mean(axis=1).astype(np.float32)


def _fill(
    report: Report, figures: Mapping[str, Mapping[str, Any]], batch_sizes: Sequence[int], rounds: int
) -> None:
    recalls, times = [], []
    beside = [("bare", "FAISS alone"), *([("time", "flat")] if "flat" in figures else [])]
    for name, found in figures.items():
        medians = [format_seconds(found[f"median_s_batch_{size}"]) for size in batch_sizes]
        if name == "flat":
            times.append((name, *medians, "", *("1" for _ in batch_sizes for _ in beside)))
            continue
        ratios = [found[f"{kind}_ratio_batch_{size}"] for kind, _ in beside for size in batch_sizes]
        times.append((name, *medians, format_seconds(found["cold_s"]), *(f"{ratio:.3f}" for ratio in ratios)))
        recalls.append(
            (
                name,
                *(f"{found[f'recall@{k}']:.3f}" for k in RECALL_KS),
                f"{found['effort']}/{found['over_fetch']}",
                format_seconds(found["build_s"]),
                format_bytes(found["size_bytes"]),
            )
        )
        report.goals += [
            Goal(f"{name} recall@20", found["recall@20"].value, "at least", RECALL_GOAL),
            Goal(f"{name} time / FAISS alone, batch {batch_sizes[0]}", ratios[0].value, "at most", BARE_GOAL),
        ]
    columns = ("index type", *(f"recall@{k}" for k in RECALL_KS), "effort/over-fetch", "built in", "on disk")
    title = "recall against exact search, after exact re-ranking [95 % bootstrap]"
    report.tables.append(Table(title, columns, recalls))
    batches = [f"batch {size}" for size in batch_sizes]
    title = f"top-{max(RECALL_KS)} search with re-ranking, median of {rounds} interleaved rounds"
    shares = (f"/ {name}, {batch}" for _, name in beside for batch in batches)
    report.tables.append(Table(title, ("index type", *batches, "1, cold", *shares), times))
