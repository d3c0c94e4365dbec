"""Searches in vectors by index type, beside exact search and bare FAISS: recall, build time, size,
time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexers.settings import INDEX_TYPES
from rag.bench.common import Timings, check_counts, question_texts, ratio, time_interleaved
from rag.bench.report import Report
from rag.core.errors import ConfigError
from rag.metrics.significance import bootstrap

RECALL_KS = (1, 10, 20, 100)
if TYPE_CHECKING:
    from indexers.embeddings import EmbeddingShards
    from indexers.faiss_index import DenseInfo
    from indexers.protocols import VectorIndex
    from rag.core.arrays import Float32

_MIN_ROUND_S = 0.1
_MOST_FLAT = 1_000_000  # vectors that are also searched one by one
LOSSY_TYPES = tuple(kind for kind in INDEX_TYPES if kind != "flat")
_BESIDE = ", FAISS alone"


def bare_flat(embeddings: EmbeddingShards) -> Any:
    """FAISS's own flat index over the same vectors, in memory; it multiplies matrices as early as
    ours.
    """
    import faiss

    index = faiss.IndexFlatIP(embeddings.dim)
    for _, block in embeddings.blocks():
        index.add(block)
    return index


def time_searches(
    searchers: Mapping[str, Any], queries: Float32, batch_size: int, top_k: int, rounds: int
) -> Timings:
    """Seconds of one batch, searched by all in turn.

    Within a round every contestant repeats the batch the same number of times: until the slowest
    takes 100 ms.
    """
    size = batch_size, queries.shape[1]
    batches = [np.resize(np.roll(queries, -turn * batch_size, axis=0), size) for turn in range(4)]
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

    runs = {name: search(searcher) for name, searcher in searchers.items()}
    timings = time_interleaved(runs, rounds=rounds)
    return {name: [s / repeats for s in values] for name, values in timings.items()}


def run_search_benchmark(
    index: Path,
    questions: Path | None = None,
    index_types: Sequence[str] = LOSSY_TYPES,
    batch_sizes: Sequence[int] = (1, 32),
    rounds: int = 9,
    sample: int = 2000,
    index_encoder: str | None = None,
    precision: str = "auto",
) -> Report:
    """Index types against exact search and against FAISS alone: recall, build time, size, search
    time.

    Each is tuned as `rag index` tunes it, on pieces of passages. Exact search (`flat`) takes part
    where there are at most a million vectors.

    Args:
        index: An index with embeddings.
        questions: File of real questions; the probes of the index if there is none.
        index_types: Lossy index types.
        batch_sizes: Queries searched at once.
        rounds: Interleaved rounds; all types and flat search take part in each.
        sample: maximum number of queries on which recall is measured.
        index_encoder: Folder of the index's encoder, if it moved.

    Raises:
        ConfigError: the index has no vectors, or fewer than the deepest recall asks for.
    """
    from indexers.index import Index
    from indexers.probes import read_probes
    from retrievers.open import open_encoder

    check_counts(batch_sizes)
    opened = Index.open(index)
    shards = opened.require_dense().embeddings
    if questions is None:
        queries = read_probes(shards)
    else:
        encoder = open_encoder(opened, encoder=index_encoder, precision=precision)
        queries = encoder.encode_questions(question_texts(questions, limit=sample))
    report = Report("search", {"index": index, "questions": questions or "probes"})
    return compare_searches(report, shards, queries, index_types, batch_sizes, rounds)


def compare_searches(
    report: Report,
    embeddings: EmbeddingShards,
    queries: Float32,
    index_types: Sequence[str],
    batch_sizes: Sequence[int],
    rounds: int,
) -> Report:
    """Measure every type and return the report."""
    from indexers.exact import FlatIndex, exact_search
    from indexers.faiss_build import build_faiss
    from indexers.faiss_index import open_dense
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
        bare, figures["flat"] = bare_flat(embeddings), {}
        is_stored = embeddings.dtype == "float32"
        searchers = (
            {"flat": FlatIndex(embeddings), f"flat{_BESIDE}": bare} if is_stored else {"flat": bare}
        )
    with tempfile.TemporaryDirectory(prefix="rag-search-") as holder:
        for name in index_types:
            place = Path(holder) / name
            started = time.perf_counter()
            info = build_faiss(embeddings, place, index_type=name, probes=read_probes(embeddings))
            build_s = time.perf_counter() - started
            searchers[name] = open_dense(place, embeddings, info)
            recalls = np.stack(
                [_recalls(searchers[name], queries, truth, k) for k in RECALL_KS], axis=1
            )
            searchers[f"{name}{_BESIDE}"] = Bare(place, info)
            figures[name] = {
                "build_s": build_s,
                "size_bytes": sum(
                    file.stat().st_size for file in place.iterdir() if file.is_file()
                ),
                "effort": info.effort,
                "over_fetch": info.over_fetch,
                "recall_at_build": info.recall,
                **dict(zip((f"recall@{k}" for k in RECALL_KS), bootstrap(recalls), strict=True)),
            }
        for size in batch_sizes:
            timings = time_searches(searchers, queries, size, top_k, rounds)
            for name, own in figures.items():
                own[f"median_s_batch_{size}"] = float(np.median(timings[name]))
                if (alone := f"{name}{_BESIDE}") in searchers:
                    own[f"bare_ratio_batch_{size}"] = ratio(timings[name], timings[alone])
                if name != "flat" and "flat" in searchers:
                    own[f"time_ratio_batch_{size}"] = ratio(timings[name], timings["flat"])
        searchers.clear()
    report.figures.update(figures)
    _fill(report, figures, batch_sizes, rounds)
    return report


class Bare:
    """FAISS's own search of an index file: the candidates of a search, without re-ranking."""

    def __init__(self, place: Path, info: DenseInfo) -> None:
        from indexers.faiss_index import open_faiss

        self._index = open_faiss(place, info)
        self._over_fetch, self._effort = info.over_fetch, info.effort

    def search(self, queries: Float32, top_k: int) -> Any:
        """Scores and rows of the candidates for the best `top_k`."""
        from indexers.exact import CANDIDATE_MARGIN
        from indexers.faiss_index import search_parameters

        count = min(top_k * self._over_fetch + CANDIDATE_MARGIN, self._index.ntotal)
        return self._index.search(
            queries, count, params=search_parameters(self._index, self._effort, count)
        )


def _recalls(index: VectorIndex, queries: Float32, truth: Float32, k: int) -> Float32:
    from indexers.exact import recalls_at

    parts = (slice(start, start + 64) for start in range(0, len(queries), 64))
    recalls = [recalls_at(index, queries[part], truth[part], k) for part in parts]
    return np.concatenate(recalls).astype(np.float32)


def _fill(
    report: Report,
    figures: Mapping[str, Mapping[str, Any]],
    batch_sizes: Sequence[int],
    rounds: int,
) -> None:
    recalls, times = [], []
    beside = [("bare", "FAISS alone"), *([("time", "flat")] if "flat" in figures else [])]
    for name, own in figures.items():
        medians = [f"{1000 * own[f'median_s_batch_{size}']:.3g} ms" for size in batch_sizes]
        ratios = [
            own.get(f"{kind}_ratio_batch_{size}") for kind, _ in beside for size in batch_sizes
        ]
        times.append((name, *medians, *("1" if it is None else f"{it:.3f}" for it in ratios)))
        if name == "flat":
            continue
        recalls.append(
            (
                name,
                *(f"{own[f'recall@{k}']:.3f}" for k in RECALL_KS),
                f"{own['effort']}/{own['over_fetch']}",
                f"{own['build_s']:.2f} s",
                f"{own['size_bytes'] / 1e6:.1f} MB",
            )
        )
    columns = (
        "index type",
        *(f"recall@{k}" for k in RECALL_KS),
        "effort/over-fetch",
        "built in",
        "on disk",
    )
    title = "recall against exact search, after exact re-ranking [95 % bootstrap]"
    report.add_table(title, columns, recalls)
    batches = [f"batch {size}" for size in batch_sizes]
    title = f"top-{max(RECALL_KS)} search with re-ranking, median of {rounds} interleaved rounds"
    shares = (f"/ {name}, {batch}" for _, name in beside for batch in batches)
    report.add_table(title, ("index type", *batches, *shares), times)
