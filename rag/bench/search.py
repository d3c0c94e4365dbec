"""Searches in vectors by index type, beside FAISS's exact search: recall, build time, size, memory,
time.
"""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from indexers.settings import INDEX_TYPES
from rag.bench.common import check_counts, ratio, time_interleaved
from rag.bench.report import Report
from rag.core.errors import ConfigError

if TYPE_CHECKING:
    from indexers.embeddings import EmbeddingShards, ShardLayout
    from indexers.faiss_index import DenseInfo
    from rag.core.arrays import Float32

    class _Searcher(Protocol):
        def search(self, queries: Float32, top_k: int, /) -> object: ...


LOSSY_TYPES = tuple(kind for kind in INDEX_TYPES if kind != "flat")
_MADE_PER_CENTRE = 100
_MADE_NOISE = 0.5  # length of the noise around a centre of length 1
_MADE_PROBES = 256
_QUERIES = 32  # of a round, unless a batch is larger
_MOST_FLAT = 1_000_000  # vectors that are also searched one by one
_FAISS = "FAISS IndexFlatIP"


def run_search_benchmark(
    index: Path | None = None,
    index_types: Sequence[str] = LOSSY_TYPES,
    batch_sizes: Sequence[int] = (1, 32),
    rounds: int = 9,
    top_k: int = 100,
    made: int | None = None,
    dim: int = 768,
) -> Report:
    """Index types against exact search and against FAISS alone: recall, build time, size, memory,
    search time.

    Each is tuned and its recall measured as `rag index` does it, on pieces of passages. Exact
    search (`flat`) and FAISS's take part where there are at most a million vectors. Memory is that
    of a process that opens the index and searches the largest batch once: its own, and the pages of
    files that it has mapped.

    Args:
        index: An index with embeddings.
        index_types: Lossy index types.
        batch_sizes: Queries searched at once.
        rounds: Interleaved rounds; all types and flat search take part in each.
        top_k: Results of a query.
        made: In place of an index so many vectors, drawn around centres of a hundred each.
        dim: Numbers in a made vector.

    Raises:
        ConfigError: the index has no vectors, or hardly any, or there is none.
    """
    from indexers.index import Index

    check_counts((*batch_sizes, top_k, dim))
    if (index is None) == (made is None):
        raise ConfigError(
            "expected one of {index} and {made}",
            hint="for example {made} 100000",
            arguments=("index", "made"),
        )
    if index is not None:
        shards = Index.open(index).require_dense().embeddings
        return compare_searches(shards, index_types, batch_sizes, rounds, top_k)
    with tempfile.TemporaryDirectory(prefix="rag-made-") as folder:
        shards = make_vectors(Path(folder), made or 0, dim)
        return compare_searches(shards, index_types, batch_sizes, rounds, top_k)


def make_vectors(folder: Path, count: int, dim: int) -> EmbeddingShards:
    """Unit vectors with noise around drawn centres, and probes made alike, in `folder`."""
    from indexers.embeddings import (
        PROBES_NAME,
        EmbeddingShards,
        ShardLayout,
        missing_shards,
        store_shard,
    )

    draw = np.random.default_rng(0)
    centres = draw.standard_normal((max(1, count // _MADE_PER_CENTRE), dim), np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def drawn(rows: int) -> Float32:
        noise = draw.standard_normal((rows, dim), np.float32)
        vectors = centres[draw.integers(0, len(centres), rows)] + noise * (_MADE_NOISE / dim**0.5)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    layout = ShardLayout(count, dim, "float32")
    for shard in missing_shards(folder, layout):
        store_shard(folder, layout, shard, drawn(len(shard.rows)))
    np.save(folder / PROBES_NAME, drawn(_MADE_PROBES))
    return EmbeddingShards.open(folder, layout)


def compare_searches(
    embeddings: EmbeddingShards,
    index_types: Sequence[str],
    batch_sizes: Sequence[int],
    rounds: int,
    top_k: int = 100,
) -> Report:
    """Measure every type and return the report."""
    from indexers.embeddings import read_probes
    from indexers.faiss_build import build_faiss

    if len(embeddings) <= top_k:
        raise ConfigError(
            f"{len(embeddings)} passages are too few to search for the best {top_k}",
            hint="use a larger index",
        )
    title = f"top-{top_k} of {len(embeddings)} vectors of {embeddings.dim} numbers"
    report = Report(f"{title}, median of {rounds} interleaved rounds")
    probes = read_probes(embeddings)
    opener = partial(_open, embeddings.directory, embeddings.layout)
    openers: dict[str, Callable[[], _Searcher]] = {}
    if len(embeddings) <= _MOST_FLAT:
        openers[_FAISS] = partial(_open_faiss, embeddings.directory, embeddings.layout)
        if embeddings.dtype == "float32":
            openers["flat"] = opener
    report.rows = {name: {} for name in (*openers, *index_types)}
    with tempfile.TemporaryDirectory(prefix="rag-search-") as holder:
        for name in index_types:
            folder = Path(holder) / name
            started = time.perf_counter()
            info = build_faiss(embeddings, folder, index_type=name, probes=probes)
            build_s = time.perf_counter() - started
            openers[name] = partial(opener, folder, info)
            sizes = [file.stat().st_size for file in folder.iterdir() if file.is_file()]
            report.rows[name] = {
                **{f"recall@{k}": recall for k, recall in info.recall.items()},
                "effort": str(info.effort),
                "over-fetch": str(info.over_fetch),
                "built in s": build_s,
                "MB on disk": sum(sizes) / 1e6,
            }
        batch = np.resize(probes, (max(batch_sizes), embeddings.dim))
        for name, open_one in openers.items():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                report.rows[name] |= pool.submit(_memory, open_one, batch, top_k).result()
        searchers = {name: open_one() for name, open_one in openers.items()}
        for size in batch_sizes:
            _add_times(report, searchers, probes, size, rounds, top_k)
        searchers.clear()
    return report


def _open_faiss(directory: Path, layout: ShardLayout) -> _Searcher:
    import faiss

    from indexers.embeddings import EmbeddingShards

    opened = faiss.IndexFlatIP(layout.dim)
    for _, block in EmbeddingShards.open(directory, layout).blocks():
        opened.add(block)
    searcher: _Searcher = opened
    return searcher


def _open(
    directory: Path,
    layout: ShardLayout,
    folder: Path | None = None,
    info: DenseInfo | None = None,
) -> _Searcher:
    """This system's index in a folder, or exact search."""
    from indexers.embeddings import EmbeddingShards
    from indexers.exact import FlatIndex
    from indexers.faiss_index import open_dense

    embeddings = EmbeddingShards.open(directory, layout)
    if folder is None or info is None:
        return FlatIndex(embeddings)
    return open_dense(folder, embeddings, info)


def _memory(open_one: Callable[[], _Searcher], batch: Float32, top_k: int) -> dict[str, float]:
    """What this process needs to open an index and to search a batch, in megabytes."""
    import indexers.faiss_index  # noqa: F401  # libraries are not counted

    before = _resident_mb()
    searcher = open_one()
    searcher.search(batch, top_k)
    after = _resident_mb()
    return {f"MB {kind}": after[kind] - before[kind] for kind in after}


def _resident_mb() -> dict[str, float]:
    """Memory of this process: its own, and pages of mapped files."""
    status = Path("/proc/self/status").read_text()
    found = dict(re.findall(r"^Rss(Anon|File):\s+(\d+) kB", status, re.MULTILINE))
    kinds = {"private": "Anon", "mapped": "File"}
    return {kind: int(found[name]) * 1024 / 1e6 for kind, name in kinds.items()}


def _add_times(
    report: Report,
    searchers: dict[str, _Searcher],
    probes: Float32,
    batch_size: int,
    rounds: int,
    top_k: int,
) -> None:
    """Time batches of this size, searched by all in turn; the ratio is to FAISS's exact search."""
    n_batches = max(1, _QUERIES // batch_size)
    batches = np.resize(probes, (n_batches, batch_size, probes.shape[1]))
    runs: dict[str, Callable[[], None]] = {}
    for name, searcher in searchers.items():
        runs[name] = partial(_search, searcher, batches, top_k)
    timings = time_interleaved(runs, rounds=rounds)
    for name, times in timings.items():
        row = report.rows[name]
        row[f"ms, batch {batch_size}"] = 1000 * float(np.median(times.elapsed_s)) / n_batches
        if _FAISS in timings:
            against = timings[_FAISS].elapsed_s
            row[f"/ FAISS, batch {batch_size}"] = ratio(times.elapsed_s, against)


def _search(searcher: _Searcher, batches: Float32, top_k: int) -> None:
    for batch in batches:
        searcher.search(batch, top_k)
