"""Asking over HTTP: latency alone and with many clients, throughput, batching."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rag.bench.common import check_counts, question_texts, ratio, time_interleaved
from rag.bench.load import LoadResult, latency_interval, run_load
from rag.bench.report import Report
from rag.bench.server_process import ServerProcess
from rag.core.errors import ConfigError
from rag.core.log import Progress


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
) -> Report:
    """Latency and throughput of a real server over HTTP, with and without batching, in alternating
    rounds.

    Args:
        questions: Question file: SQuAD, DPR, JSONL … (.gz too); each request asks one.
        clients: Numbers of clients; each waits for its answer before it asks again.
        requests: Requests per number of clients and server, over all rounds.
        top_k: Passages to read.
        rounds: Rounds; the two servers take turns in each.

    Raises:
        ConfigError: fewer requests than rounds times clients.
        ResourceError: a server did not start.
    """
    check_counts(clients)
    per_round = requests // max(rounds, 1)
    if rounds < 1 or per_round < max(clients):
        raise ConfigError(
            f"{requests} requests in {rounds} rounds are too few for {max(clients)} clients",
            hint=f"use --requests {3 * max(clients) * max(rounds, 1)} or more",
        )
    texts = question_texts(questions)
    named = {"--retriever": retriever, "--precision": precision, "--reader": reader}
    arguments = [word for name, value in named.items() if value for word in (name, value)]
    settings = {
        "index": index,
        "questions": questions,
        "requests": requests,
        "rounds": rounds,
        "top_k": top_k,
        "retriever": retriever,
        "reader": reader or "shipped",
        "precision": precision,
    }
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
            return run_load(
                *place, texts, clients=count, requests=requests, top_k=top_k, first=first
            )

        def run(name: str, count: int) -> None:
            done = runs[name, count]
            done.append(load(servers[name], count, per_round, len(done) * per_round))
            progress.update(per_round)

        for server in servers.values():
            load(server, max(clients), 2 * max(clients))  # warm up
        time_interleaved({f"{key}": partial(run, *key) for key in runs}, rounds=rounds, warm_up=0)
        report.figures["start_s"] = batching.ready_after_s
    _fill(report, runs, clients)
    return report


def _fill(
    report: Report, runs: dict[tuple[str, int], list[LoadResult]], clients: Sequence[int]
) -> None:
    rows, figures = [], {}
    for (name, count), results in sorted(runs.items(), key=lambda item: (item[0][1], item[0][0])):
        every = [latency_s for result in results for latency_s in result.latencies_s]
        joined = LoadResult(every, sum(result.wall_s for result in results))
        p50, p95 = (latency_interval(joined.latencies_s, percent) for percent in (50, 95))
        label = f"{count} client{'s' if count > 1 else ''}, {name}"
        latencies = [f"{figure.times(1000):.0f}" for figure in (p50, p95)]
        rows.append(
            (label, *latencies, f"{joined.requests_per_s:.2f}", str(len(joined.latencies_s)))
        )
        figures[label] = {
            "clients": count,
            "server": name,
            "p50_s": p50,
            "p95_s": p95,
            "requests": len(joined.latencies_s),
            "requests_per_s": joined.requests_per_s,
        }
    title = "latency and throughput [95 % bootstrap interval over requests]"
    report.add_table(title, ("", "p50 ms", "p95 ms", "requests/s", "requests"), rows)
    most = max(clients)
    gain = ratio(
        [r.wall_s for r in runs["one by one", most]], [r.wall_s for r in runs["batching", most]]
    )
    report.figures |= {"loads": figures, "batching_gain": gain}
    row = (f"{most} clients, batching / one by one", f"{gain:.2f}")
    report.add_table("batching", ("", "throughput ratio"), [row])
