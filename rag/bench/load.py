"""Concurrent HTTP clients, each with a persistent connection, each waiting for its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

import numpy as np

from rag.bench.common import interval_of
from rag.bench.server_process import post_json
from rag.core.errors import ConfigError, RagError
from rag.metrics.significance import Interval


@dataclass(slots=True)
class LoadResult:
    """Measurements of the clients.

    Attributes:
        latencies_s: seconds of every request, in the order of their questions.
        wall_s: from the first request to the last answer.
        timings_ms: the stage timings of every answer.
    """

    latencies_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    timings_ms: list[dict[str, float]] = field(default_factory=list)

    @property
    def requests_per_s(self) -> float:
        """Requests answered per second of wall time."""
        return len(self.latencies_s) / max(self.wall_s, 1e-9)

    def add(self, other: LoadResult) -> None:
        """Join the requests of another run."""
        self.latencies_s += other.latencies_s
        self.timings_ms += other.timings_ms
        self.wall_s += other.wall_s


def run_load(
    host: str,
    port: int,
    questions: Sequence[str],
    *,
    clients: int,
    requests: int,
    top_k: int,
    first: int = 0,
) -> LoadResult:
    """Send `requests` questions from `clients` threads; each client sends the next one after its answer.

    Args:
        questions: sent in turn, beginning with number `first`; used again from the start if they run out.
        clients: concurrent requests.
        requests: number of requests in total.
        top_k: passages read for each question.
        first: where in `questions` to begin, so that repeated runs ask different questions.

    Raises:
        ConfigError: fewer than one client or request.
        RagError: a request failed.
    """
    if clients < 1 or requests < 1:
        raise ConfigError(f"{clients} clients and {requests} requests, expected at least 1 of both")
    own = threading.local()
    connections: list[HTTPConnection] = []

    def connect() -> None:
        own.connection = HTTPConnection(host, port, timeout=300)
        connections.append(own.connection)

    def ask(number: int) -> tuple[float, dict[str, float]]:
        question = questions[(first + number) % len(questions)]
        began = time.perf_counter()
        answer = post_json(own.connection, "/v1/ask", {"question": question, "top_k": top_k})
        return time.perf_counter() - began, answer["timings_ms"]

    began = time.perf_counter()
    pool = ThreadPoolExecutor(min(clients, requests), initializer=connect)
    try:
        latencies_s, timings_ms = zip(*pool.map(ask, range(requests)), strict=True)
    except (RagError, OSError, HTTPException, ValueError, KeyError) as error:
        raise RagError(f"a request failed: {error}", hint="look at the server's log") from error
    finally:
        pool.shutdown(cancel_futures=True)
        for connection in connections:
            connection.close()
    return LoadResult(list(latencies_s), time.perf_counter() - began, list(timings_ms))


def latency_interval(latencies_s: Sequence[float], percent: float) -> Interval:
    """A percentile of latency with its 95 % bootstrap interval over requests, in seconds."""
    return interval_of(lambda x, axis: np.percentile(x, percent, axis), latencies_s, resamples=1000)


def stage_shares(result: LoadResult) -> dict[str, float]:
    """Mean share of each stage in a request's time, as its client sees it; "http" is the rest.

    The server's `total` is divided into its stages, with "other" for the time that no stage covers.
    """
    sums: dict[str, float] = {}
    for timings in result.timings_ms:
        for stage, value in timings.items():
            sums[stage] = sums.get(stage, 0.0) + value
    whole = 1000.0 * sum(result.latencies_s)
    total, queue = sums.pop("total", None), sums.pop("queue", 0.0)
    parts = {"queue": queue, **sums}
    if total is not None:
        parts["other"] = max(0.0, total - sum(sums.values()))
    parts["http"] = max(0.0, whole - sum(parts.values()))
    return {stage: value / whole for stage, value in parts.items()} if whole else {}
