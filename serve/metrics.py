"""Prometheus metrics; each application has its own registry, so two of them can run in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """Counters, gauges and histograms of one server."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, queue_depth: Callable[[], int]) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "rag_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "rag_request_seconds", "Wall time of a request", ["route"], buckets=_LATENCY_S, registry=registry
        )
        self.in_flight = Gauge("rag_requests_in_flight", "Requests being answered", registry=registry)
        self.rejected = Counter(
            "rag_rejected", "Requests refused to protect the server", ["reason"], registry=registry
        )
        self.questions = Counter("rag_questions", "Questions run", ["kind"], registry=registry)
        self.no_answers = Counter(
            "rag_no_answers", "Questions for which no answer was found", registry=registry
        )
        self.stage_seconds = Histogram(
            "rag_stage_seconds", "Wall time: queue wait of a question, stages of a batch", ["stage"],
            buckets=_LATENCY_S, registry=registry,
        )  # fmt: skip
        self.batch_size = Histogram(
            "rag_batch_size", "Questions in a batch", buckets=_SIZES, registry=registry
        )
        depth = Gauge("rag_queue_depth", "Questions waiting for the model", registry=registry)
        depth.set_function(queue_depth)
        self.index_info = Gauge(
            "rag_index_info", "1 for the index being served", ["version"], registry=registry
        )
        self.index_passages = Gauge(
            "rag_index_passages", "Passages in the index being served", registry=registry
        )

    def batch_finished(self, size: int, duration_s: float, waits_s: Sequence[float]) -> None:
        """Record one batch."""
        self.batch_size.observe(size)
        self.stage_seconds.labels("batch").observe(duration_s)
        for wait_s in waits_s:
            self.stage_seconds.labels("queue").observe(wait_s)

    def stages_finished(self, timings_ms: Mapping[str, float]) -> None:
        """Record the stages of one batch."""
        for stage, value_ms in timings_ms.items():
            if stage != "total":
                self.stage_seconds.labels(stage).observe(value_ms / 1000.0)

    def request_finished(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Record one request."""
        self.requests.labels(method, route, str(status)).inc()
        self.request_seconds.labels(route).observe(duration_s)

    def index_changed(self, version: str, n_passages: int) -> None:
        """Record a change of the served index."""
        self.index_info.clear()
        self.index_info.labels(version).set(1)
        self.index_passages.set(n_passages)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
