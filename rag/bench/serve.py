"""Asking over HTTP: latency alone and with many clients, throughput, where the time goes, batching."""

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rag.bench.common import question_texts, ratio, time_interleaved
from rag.bench.load import LoadResult, latency_interval, run_load, stage_shares
from rag.bench.report import Goal, Report, Table
from rag.bench.server_process import ServerProcess, server_arguments
from rag.core.errors import ConfigError
from rag.core.progress import Progress

BATCHING_GOAL = 2.0
_ASK_AGAIN_S = 2.0


def run_serve_benchmark(
    index: Path,
    questions: Path,
    clients: Sequence[int] = (1, 16),
    requests: int = 480,
    top_k: int = 20,
    rounds: int = 3,
    retriever: str = "auto",
    reader: str | None = None,
    precision: str = "auto",
    format: str = "auto",
    swaps: int = 0,
    swap_requests: int = 10_000,
) -> Report:
    """Latency and throughput of a real server over HTTP, with and without batching, in alternating rounds.

    Args:
        questions: Question file: SQuAD, DPR, JSONL … (.gz too); each request asks one.
        clients: Numbers of clients; each waits for its answer before it asks again.
        requests: Requests per number of clients and server, over all rounds.
        top_k: Passages to read.
        rounds: Rounds; the two servers take turns in each.
        swaps: Number of times that the index is then reopened while clients search; a request that fails ends
            the benchmark.
        swap_requests: Minimum number of requests to /v1/retrieve during the swaps.

    Raises:
        ConfigError: fewer requests than rounds times clients.
        ResourceError: a server did not start.
    """
    per_round = requests // max(rounds, 1)
    if rounds < 1 or per_round < max(clients):
        raise ConfigError(
            f"{requests} requests in {rounds} rounds are too few for {max(clients)} clients",
            hint=f"use --requests {3 * max(clients) * max(rounds, 1)} or more",
        )
    texts = question_texts(questions, format=format)
    arguments = server_arguments(retriever, reader, precision)
    settings = {
        "index": index, "questions": questions, "requests": requests, "rounds": rounds, "top_k": top_k,
        "retriever": retriever, "reader": reader or "shipped", "precision": precision,
    }  # fmt: skip
    report = Report("serve", settings)
    runs: dict[tuple[str, int], list[LoadResult]] = {
        (name, count): [] for count in clients for name in ("batching", "one by one")
    }
    with (
        ServerProcess(index, arguments=arguments) as batching,
        ServerProcess(index, arguments=arguments, settings={"batch_max_size": 1}) as single,
        Progress(2 * rounds * per_round * len(clients), "requests", "serve") as progress,
    ):
        servers = {"batching": batching, "one by one": single}

        def load(server: ServerProcess, count: int, requests: int, first: int = 0) -> LoadResult:
            place = server.host, server.port
            return run_load(*place, texts, clients=count, requests=requests, top_k=top_k, first=first)

        def run(name: str, count: int) -> None:
            done = runs[name, count]
            done.append(load(servers[name], count, per_round, len(done) * per_round))
            progress.update(per_round)

        for server in servers.values():
            load(server, max(clients), 2 * max(clients))  # warm up
        time_interleaved({f"{key}": partial(run, *key) for key in runs}, rounds=rounds, warm_up=0)
        report.figures["start_s"] = batching.ready_after_s
        if swaps:
            _swap(report, batching, texts, max(clients), swap_requests, swaps)
    _fill(report, runs, clients)
    return report


def _fill(report: Report, runs: dict[tuple[str, int], list[LoadResult]], clients: Sequence[int]) -> None:
    rows, shares, figures = [], {}, {}
    for (name, count), results in sorted(runs.items(), key=lambda item: (item[0][1], item[0][0])):
        joined = LoadResult()
        for result in results:
            joined.add(result)
        p50, p95 = (latency_interval(joined.latencies_s, percent) for percent in (50, 95))
        label = f"{count} client{'s' if count > 1 else ''}, {name}"
        latencies = [f"{figure.times(1000):.0f}" for figure in (p50, p95)]
        rows.append((label, *latencies, f"{joined.requests_per_s:.2f}", str(len(joined.latencies_s))))
        shares[label] = stage_shares(joined)
        figures[label] = {
            "clients": count,
            "server": name,
            "p50_s": p50,
            "p95_s": p95,
            "requests": len(joined.latencies_s),
            "requests_per_s": joined.requests_per_s,
            "stage_shares": shares[label],
        }
    columns = ("", "p50 ms", "p95 ms", "requests/s", "requests")
    title = "latency and throughput [95 % bootstrap interval over requests]"
    report.tables.append(Table(title, columns, rows))
    stages = list(dict.fromkeys(stage for share in shares.values() for stage in share))
    stage_rows = [
        (label, *(f"{100 * share.get(s, 0.0):.1f}" for s in stages)) for label, share in shares.items()
    ]
    report.tables.append(Table("share of a request's time by stage, per cent", ("", *stages), stage_rows))
    most = max(clients)
    gain = ratio([r.wall_s for r in runs["one by one", most]], [r.wall_s for r in runs["batching", most]])
    report.figures |= {"loads": figures, "batching_gain": gain}
    row = (f"{most} clients, batching / one by one", f"{gain:.2f}")
    report.tables.append(Table("batching", ("", "throughput ratio"), [row]))
    name = f"batching raises throughput at {most} clients"
    report.goals.append(Goal(name, gain.value, "at least", BATCHING_GOAL))


def _swap(
    report: Report, server: ServerProcess, texts: Sequence[str], clients: int, requests: int, swaps: int
) -> None:
    """Search from many clients while the server opens its index anew, again and again."""
    result, done = LoadResult(), 0
    with ThreadPoolExecutor(1) as pool:
        while done < swaps or len(result.latencies_s) < requests:
            place = server.host, server.port
            part = pool.submit(
                run_load, *place, texts, clients=clients, requests=max(clients, requests // 20), top_k=20,
                path="/v1/retrieve",
            )  # fmt: skip
            while not part.done() and done < swaps:
                before, asked = server.index_loads(), -_ASK_AGAIN_S
                while server.index_loads() == before:
                    if time.monotonic() - asked >= _ASK_AGAIN_S:  # refused while the last swap ends
                        os.kill(server.pid, signal.SIGHUP)
                        asked = time.monotonic()
                    time.sleep(0.05)
                done += 1
            result.add(part.result())
    rest = [latency_interval(result.latencies_s, percent) for percent in (50, 95, 100)]
    cells = (f"{figure.times(1000):.0f}" for figure in rest)
    title = f"{clients} clients of /v1/retrieve while the index is swapped"
    columns = ("swaps", "requests", "failed", "p50 ms", "p95 ms", "slowest ms")
    report.tables.append(Table(title, columns, [(str(done), str(len(result.latencies_s)), "0", *cells)]))
    report.figures["swaps"] = {"swaps": done, "requests": len(result.latencies_s), "failed": 0}
