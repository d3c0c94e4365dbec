"""A Ray cluster beside one process: encoding throughput, search in shards, and recovery."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rag.bench.common import ratio, time_interleaved, working_folder
from rag.bench.report import Goal, Report, Table
from rag.bench.search import time_searches
from rag.core.progress import StageTimer, format_seconds

if TYPE_CHECKING:
    from rag.scale.search import ShardedIndex

ENCODING_GOAL, SEARCH_GOAL = 1.05, 1.15
_TOP_K = 20


def run_scale_benchmark(
    index: Path,
    ray: str,
    passages: int = 2048,
    shard_rows: int = 256,
    shards: Sequence[int] = (1, 2, 4, 8),
    rounds: int = 3,
    work_dir: Path | None = None,
) -> Report:
    """Encoding and search on a Ray cluster beside one process of this machine on the same data.

    Encoding: the first passages of the index, by its own encoder with one thread, against tasks on every CPU
    of the cluster; the bytes must be equal. Search: passages with noise as queries, one and 32 at a time; the
    results must be equal. Recovery: a search process is killed, and the time measured until all parts answer.

    Args:
        index: index with vectors, on a disk that all nodes share.
        ray: Address of the cluster.
        passages: Passages to encode; 0 for none.
        shard_rows: Passages per task.
        shards: Numbers of parts.
        rounds: Turns of cluster and single process.
        work_dir: Folder on a disk that all nodes share, for the encoded vectors.

    Raises:
        ConfigError: the index has no vectors.
        ResourceError: there is no cluster at the address.
    """
    from rag.scale.cluster import connected, live_nodes

    with connected(ray) as module:
        cpus, nodes = int(module.cluster_resources().get("CPU", 0)), len(live_nodes(module))
        settings = {"index": index, "ray": ray, "passages": passages, "shard_rows": shard_rows}
        report = Report("scale", {**settings, "cpus": cpus, "nodes": nodes})
        _search(report, index, ray, shards, rounds)  # what is short comes first, and tells what does not fit
        _recover(report, index, ray)
        if passages:
            _encode(report, index, module, passages, shard_rows, rounds, work_dir)
    return report


def _encode(
    report: Report, place: Path, ray: Any, count: int, shard_rows: int, rounds: int, work_dir: Path | None
) -> None:
    import torch

    from indexers.embedding_shards import EmbeddingShards
    from indexers.embeddings import encode_corpus
    from indexers.index import Index
    from indexers.passage_writer import PassageStoreWriter
    from indexers.passages import PassageStore
    from rag.scale.encoding import encode_on_cluster
    from retrievers.open import open_encoder

    torch.set_num_threads(1)
    with Index.open(place) as index, working_folder("scale", work_dir) as folder:
        encoder = open_encoder(index)
        with PassageStoreWriter(folder / "passages") as writer:
            writer.add_many(index.passages.get_many(range(min(count, len(index.passages)))))
        store = PassageStore.open(folder / "passages")
        made: dict[str, EmbeddingShards] = {}

        def run(name: str, encode: Any) -> None:
            target = folder / f"{name}-{time.monotonic_ns()}"
            made[name] = encode(target, store, encoder, "float16", shard_rows=shard_rows)

        contestants = {
            "one process": partial(run, "one", encode_corpus),
            "cluster": partial(run, "many", partial(encode_on_cluster, ray)),
        }
        times = time_interleaved(contestants, rounds=rounds, warm_up=1).seconds
        equal = made["one"].checksums() == made["many"].checksums()
    cpus = max(1, report.settings["cpus"])
    share = ratio([cpus * seconds for seconds in times["cluster"]], times["one process"])
    rows = [
        (name, format_seconds(float(np.median(seconds))), f"{len(store) / np.median(seconds):.1f}")
        for name, seconds in times.items()
    ]
    report.tables.append(Table("encoding", ("", "time", "passages/s"), rows))
    report.figures["encoding"] = {
        "seconds": {k: list(v) for k, v in times.items()}, "overhead": share, "equal": equal,
    }  # fmt: skip
    report.notes.append(
        f"CPU time of the cluster ({cpus} CPUs) per time of one process: {share:.2f}; "
        f"bytes {'equal' if equal else 'DIFFER'}"
    )
    report.goals.append(Goal("cluster / one process, per CPU", share.value, "at most", ENCODING_GOAL))


def _search(report: Report, place: Path, ray: str, shards: Sequence[int], rounds: int) -> None:
    from indexers.index import Index
    from indexers.probes import perturbed_probes
    from rag.scale.search import open_sharded

    rows, figures = [], {}
    with Index.open(place) as one:
        single = one.require_dense()
        queries = perturbed_probes(single.embeddings, 32, 0)
        for count in shards:
            with open_sharded(place, f"{ray},shards={count},deadline=60") as many:
                sharded = many.require_dense().vectors
                for size in (1, 32):
                    asked = queries[:size]
                    here, there = (dense.search(asked, _TOP_K) for dense in (single.vectors, sharded))
                    equal = np.array_equal(here[0], there[0]) and np.array_equal(here[1], there[1])
                    both = {"one process": single.vectors, "cluster": sharded}
                    timings = time_searches(both, queries, size, _TOP_K, max(rounds, 5))
                    share = timings.ratio("cluster", "one process")
                    name = f"{count} shards, {size} queries"
                    figures[name] = {"ratio": share, "equal": equal}
                    cells = (format_seconds(timings.median(who)) for who in both)
                    rows.append((name, *cells, f"{share:.2f}", "yes" if equal else "NO"))
                    report.goals.append(Goal(f"{name}: time ratio", share.value, "at most", SEARCH_GOAL))
    columns = ("", "one process", "cluster", "ratio", "equal")
    report.tables.append(Table("search, top 20", columns, rows))
    report.figures["search"] = figures


def _recover(report: Report, place: Path, ray: str) -> None:
    """Kill the first process of two parts; only where it runs on this machine."""
    from indexers.probes import perturbed_probes
    from rag.scale.search import open_sharded

    rows = []
    for replicas in (1, 2):
        with open_sharded(place, f"{ray},shards=2,replicas={replicas},deadline=60") as index:
            dense = index.require_dense()
            sharded = cast("ShardedIndex", dense.vectors)
            queries = perturbed_probes(dense.embeddings, 1, 0)
            pid, node = sharded.processes()[0][0]
            if node != os.uname().nodename:
                report.notes.append("recovery was not measured: the search processes are on other machines")
                return
            sharded.search(queries, _TOP_K)
            os.kill(pid, signal.SIGKILL)
            began, timer = time.perf_counter(), StageTimer()
            sharded.search_timed(queries, _TOP_K, timer)
            seconds = time.perf_counter() - began
            state = "complete" if not timer.missing else "partial"
            rows.append((f"{replicas} per part", format_seconds(seconds), state))
            report.figures[f"recovery_{replicas}"] = {"seconds": seconds, "missing": len(timer.missing)}
    title = "first answer after a search process was killed"
    report.tables.append(Table(title, ("processes", "time", "answer"), rows))
