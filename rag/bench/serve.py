"""Asking over HTTP: latency alone and with many clients, throughput, batching."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from itertools import chain, cycle, islice
from pathlib import Path

from rag.bench.common import check_counts, percentile_ms, ratio, time_interleaved
from rag.bench.report import Report
from rag.bench.server_process import ServerProcess, post_json
from rag.core.errors import ConfigError
from rag.data.questions import read_questions


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
    check_counts((*clients, rounds))
    per_round = requests // rounds
    if per_round < max(clients):
        raise ConfigError(
            f"{requests} requests in {rounds} rounds are too few for {max(clients)} clients",
            hint=f"use --requests {3 * max(clients) * rounds} or more",
        )
    report = Report("latency [over requests] and throughput")
    arguments = ["--retriever", retriever, "--precision", precision]
    if reader:
        arguments += ["--reader", reader]
    texts = [question.text for question in read_questions(questions)]
    with (
        ServerProcess(index, arguments=arguments) as batching,
        ServerProcess(index, arguments=arguments, settings={"batch_max_size": 1}) as single,
    ):
        servers = {"batching": batching, "one by one": single}
        asked = {name: cycle(texts) for name in servers}
        for name, server in servers.items():  # warm up
            run_load(server, asked[name], max(clients), 2 * max(clients), top_k)
        for count in clients:
            loads = {}
            for name, server in servers.items():
                loads[name] = partial(run_load, server, asked[name], count, per_round, top_k)
            timings = time_interleaved(loads, rounds=rounds, warm_up=0)
            alone_s = timings["one by one"].elapsed_s
            for name, times in timings.items():
                latencies_s = list(chain.from_iterable(times.results))
                report.rows[f"{count} clients, {name}"] = {
                    "p50 ms": percentile_ms(latencies_s),
                    "p95 ms": percentile_ms(latencies_s, 95),
                    "requests/s": len(latencies_s) / sum(times.elapsed_s),
                    "throughput / one by one": ratio(alone_s, times.elapsed_s),
                }
    return report


def run_load(
    server: ServerProcess, questions: Iterator[str], clients: int, requests: int, top_k: int
) -> list[float]:
    """Send questions from threads, each with a connection of its own, which sends the next question
    after its answer; returns the seconds of each request.

    Args:
        top_k: passages read for each question.

    Raises:
        DataError: the server refused a request.
    """
    client = threading.local()

    def ask(question: str) -> float:
        began = time.perf_counter()
        post_json(client.connection, "/v1/ask", {"question": question, "top_k": top_k})
        return time.perf_counter() - began

    with ExitStack() as opened:

        def connect() -> None:
            connection = HTTPConnection(server.host, server.port, timeout=300)
            client.connection = opened.enter_context(closing(connection))

        with ThreadPoolExecutor(clients, initializer=connect) as pool:
            return list(pool.map(ask, islice(questions, requests)))
