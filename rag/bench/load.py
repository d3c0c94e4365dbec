"""Concurrent HTTP clients, each with a persistent connection, each waiting for its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

import numpy as np

from rag.bench.common import interval_of
from rag.bench.server_process import post_json
from rag.core.errors import RagError
from rag.metrics.significance import Interval


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Seconds of every request, in the order of their questions, and from the first to the last
    answer.
    """

    latencies_s: list[float]
    wall_s: float

    @property
    def requests_per_s(self) -> float:
        """Requests answered per second of wall time."""
        return len(self.latencies_s) / max(self.wall_s, 1e-9)


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
    """Send `requests` questions from `clients` threads; each client sends the next one after its
    answer.

    Args:
        questions: sent in turn, beginning with number `first`, so that repeated runs ask different
            ones; used again from the start if they run out.
        top_k: passages read for each question.

    Raises:
        RagError: a request failed.
    """
    own = threading.local()
    connections: list[HTTPConnection] = []

    def connect() -> None:
        own.connection = HTTPConnection(host, port, timeout=300)
        connections.append(own.connection)

    def ask(number: int) -> float:
        question = questions[(first + number) % len(questions)]
        began = time.perf_counter()
        post_json(own.connection, "/v1/ask", {"question": question, "top_k": top_k})
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


def latency_interval(latencies_s: Sequence[float], percent: float) -> Interval:
    """A percentile of latency with its 95 % bootstrap interval over requests, in seconds."""
    return interval_of(lambda x, axis: np.percentile(x, percent, axis), latencies_s, resamples=1000)
