"""Asking over HTTP: latency alone and with many clients, throughput, batching."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import chain, product
from pathlib import Path

from rag.bench.common import check_counts, percentile, question_texts, ratio, time_interleaved
from rag.bench.report import Report
from rag.bench.server_process import ServerProcess, post_json
from rag.core.errors import ConfigError, RagError
from rag.core.log import Progress


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Seconds of every request, in the order of their questions, and from the first to the last
    answer.
    """

    latencies_s: list[float]
    wall_s: float


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
    settings: dict[str, object] = {
        "index": index,
        "questions": questions,
        "requests": requests,
        "rounds": rounds,
        "top_k": top_k,
        "retriever": retriever,
        "reader": reader or "shipped",
        "precision": precision,
    }
    title = "latency [over requests] and throughput"
    report = Report("serve", settings, title)
    arguments = ["--retriever", retriever, "--precision", precision]
    if reader:
        arguments += ["--reader", reader]
    results: dict[tuple[int, str], list[LoadResult]] = {}
    with (
        ServerProcess(index, arguments=arguments) as batching,
        ServerProcess(index, arguments=arguments, settings={"batch_max_size": 1}) as single,
        Progress(2 * rounds * per_round * len(clients), "requests", "serve") as progress,
    ):
        servers = {"batching": batching, "one by one": single}

        def load(count: int, name: str) -> None:
            before = results[count, name]
            result = run_load(
                servers[name],
                texts,
                clients=count,
                requests=per_round,
                top_k=top_k,
                first=len(before) * per_round,
            )
            before.append(result)
            progress.update(per_round)

        for server in servers.values():  # warm up
            most = max(clients)
            run_load(server, texts, clients=most, requests=2 * most, top_k=top_k)
        runs = {}
        for count, name in product(clients, servers):
            results[count, name] = []
            runs[f"{count}, {name}"] = partial(load, count, name)
        time_interleaved(runs, rounds=rounds, warm_up=0)
    for (count, name), loads in results.items():
        latencies = list(chain.from_iterable(load.latencies_s for load in loads))
        walls = [load.wall_s for load in loads]
        alone = [load.wall_s for load in results[count, "one by one"]]
        report.rows[f"{count} clients, {name}"] = {
            "p50 ms": percentile(latencies, 50).times(1000),
            "p95 ms": percentile(latencies, 95).times(1000),
            "requests/s": len(latencies) / sum(walls),
            "throughput / one by one": ratio(alone, walls),
        }
    return report


def run_load(
    server: ServerProcess,
    questions: Sequence[str],
    *,
    clients: int,
    requests: int,
    top_k: int,
    first: int = 0,
) -> LoadResult:
    """Send `requests` questions from `clients` threads; each client has a connection of its own and
    sends the next question after its answer.

    Args:
        questions: sent in turn, beginning with number `first`, so that repeated runs ask different
            ones; used again from the start if they run out.
        top_k: passages read for each question.

    Raises:
        RagError: a request failed.
    """
    client = threading.local()
    connections: list[HTTPConnection] = []

    def connect() -> None:
        client.connection = HTTPConnection(server.host, server.port, timeout=300)
        connections.append(client.connection)

    def ask(number: int) -> float:
        question = questions[(first + number) % len(questions)]
        began = time.perf_counter()
        post_json(client.connection, "/v1/ask", {"question": question, "top_k": top_k})
        return time.perf_counter() - began

    began = time.perf_counter()
    pool = ThreadPoolExecutor(min(clients, requests), initializer=connect)
    try:
        latencies_s = list(pool.map(ask, range(requests)))
    except (RagError, OSError, HTTPException, ValueError) as error:
        raise RagError(f"a request failed: {error}", hint="look at the server's log") from error
    finally:
        pool.shutdown(cancel_futures=True)
        for connection in connections:
            connection.close()
    return LoadResult(latencies_s, time.perf_counter() - began)
