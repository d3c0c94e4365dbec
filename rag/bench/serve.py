"""Asking over HTTP: latency alone and with many clients, throughput, where the time goes, batching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rag.bench.common import ratio, sample_questions
from rag.bench.load import LoadResult, latency_interval, run_load, stage_shares
from rag.bench.report import Goal, Report, Table, format_interval
from rag.bench.server_process import ServerProcess
from rag.core.errors import ConfigError
from rag.core.progress import Progress

__all__ = ["run_serve_benchmark"]

BATCHING_GOAL = 2.0


def run_serve_benchmark(
    index_dir: str | Path,
    questions_path: str | Path,
    *,
    clients: Sequence[int] = (1, 16),
    requests: int = 480,
    top_k: int = 20,
    rounds: int = 3,
    retriever: str = "auto",
    reader: str | None = None,
    precision: str = "auto",
    format: str = "auto",
) -> Report:
    """Ask a real server, with batching and with batches of one, in alternating rounds.

    Args:
        index_dir: index to serve.
        questions_path: real questions; each request asks one.
        clients: numbers of clients to try; each client waits for its answer before it asks again.
        requests: per number of clients and server, over all rounds.
        top_k: passages read for a question.
        rounds: the two servers take turns this often.
        retriever: of the server.
        reader: of the server; the one in the package by default.
        precision: of the server.
        format: of the question file.

    Raises:
        ConfigError: fewer requests than rounds times clients.
        ResourceError: a server did not start.
    """
    per_round = requests // rounds
    if rounds < 1 or per_round < max(clients):
        raise ConfigError(
            f"{requests} requests in {rounds} rounds are too few for {max(clients)} clients",
            hint=f"use --requests {3 * max(clients) * max(rounds, 1)} or more",
        )
    texts = [question.text for question in sample_questions(questions_path, format=format)]
    arguments = [
        "--retriever",
        retriever,
        "--precision",
        precision,
        *(["--reader", reader] if reader else []),
    ]
    settings = {
        "index": index_dir,
        "questions": questions_path,
        "requests": requests,
        "rounds": rounds,
        "top_k": top_k,
        "retriever": retriever,
        "reader": reader or "shipped",
        "precision": precision,
    }
    report = Report("serve", settings)
    runs: dict[tuple[str, int], list[LoadResult]] = {}
    with (
        ServerProcess(index_dir, arguments=arguments) as batching,
        ServerProcess(index_dir, arguments=arguments, settings={"batch_max_size": 1}) as single,
        Progress(2 * rounds * per_round * len(clients), "requests", "serve") as progress,
    ):
        servers = {"batching": batching, "one by one": single}
        for server in servers.values():
            run_load(
                server.host, server.port, texts, clients=max(clients), requests=2 * max(clients), top_k=top_k
            )
        for number in range(rounds):
            for count in clients:
                names = list(servers) if number % 2 == 0 else list(servers)[::-1]
                for name in names:
                    result = run_load(
                        servers[name].host,
                        servers[name].port,
                        texts,
                        clients=count,
                        requests=per_round,
                        top_k=top_k,
                        first=number * per_round,
                    )
                    runs.setdefault((name, count), []).append(result)
                    progress.update(per_round)
        report.figures["start_s"] = batching.ready_after_s
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
        rows.append(
            (
                label,
                *(f"{1000 * i.value:.0f} [{1000 * i.low:.0f}, {1000 * i.high:.0f}]" for i in (p50, p95)),
                f"{joined.requests_per_s:.2f}",
                str(len(joined.latencies_s)),
            )
        )
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
    report.tables.append(
        Table("latency and throughput [95 % bootstrap interval over requests]", columns, rows)
    )
    stages = list(dict.fromkeys(stage for share in shares.values() for stage in share))
    stage_rows = [
        (label, *(f"{100 * share.get(s, 0.0):.1f}" for s in stages)) for label, share in shares.items()
    ]
    report.tables.append(Table("share of a request's time by stage, per cent", ("", *stages), stage_rows))
    report.figures["loads"] = figures
    most = max(clients)
    gain = ratio([r.wall_s for r in runs["one by one", most]], [r.wall_s for r in runs["batching", most]])
    report.figures["batching_gain"] = gain
    report.tables.append(
        Table(
            "batching",
            ("", "throughput ratio"),
            [(f"{most} clients, batching / one by one", format_interval(gain, 2))],
        )
    )
    report.goals.append(
        Goal(f"batching raises throughput at {most} clients", gain.value, "at least", BATCHING_GOAL)
    )
