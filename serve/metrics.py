"""Prometheus metrics: of this process, or of all workers of a server through files that they
share.
"""

import os
import re
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

SHARED_FOLDER = (
    "PROMETHEUS_MULTIPROC_DIR"  # the library's variable, set before a worker imports the library
)
_OF_SHELVES = re.compile(rb"^(?:# \w+ )?rag_shelf_.*\n", re.MULTILINE)
_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """Counters, gauges and histograms of an application, in a registry that no other application
    shares.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        newest = partial(Gauge, registry=registry, multiprocess_mode="livemax")
        seconds = partial(Histogram, buckets=_LATENCY_S, registry=registry)
        self.requests = counter("rag_requests", "Requests answered", ["method", "route", "status"])
        self.request_seconds = seconds("rag_request_seconds", "Wall time of a request", ["route"])
        self.in_flight = gauge("rag_requests_in_flight", "Requests being answered")
        self.rejected = counter(
            "rag_rejected", "Requests refused to protect the server", ["reason"]
        )
        self.questions = counter("rag_questions", "Questions run", ["kind"])
        self.no_answers = counter("rag_no_answers", "Questions for which no answer was found")
        self.stage_seconds = seconds(
            "rag_stage_seconds", "Wall time: queue wait of a question, stages of a batch", ["stage"]
        )
        self.batch_size = Histogram(
            "rag_batch_size", "Questions in a batch", buckets=_SIZES, registry=registry
        )
        self.queue_depth = gauge("rag_queue_depth", "Questions waiting for the model")
        self.index_info = newest("rag_index_info", "1 for the version being served", ["version"])
        self.index_passages = newest("rag_index_passages", "Passages that everybody may read")
        self.shelf_questions = counter(
            "rag_shelf_questions", "Questions run on a shelf", ["shelf", "kind"]
        )
        self.shelf_passages = newest(
            "rag_shelf_passages", "Passages on a shelf that everybody may read", ["shelf"]
        )
        self.index_loads = counter("rag_index_loads", "Times that an index was taken into use")

    def count_passages(self, count: int, shelf: str) -> None:
        """Record how many passages everybody may read; the only index of a server has no `shelf`."""
        if shelf:
            self.shelf_passages.labels(shelf).set(count)
        else:
            self.index_passages.set(count)

    def index_changed(self, version: str, previous: str, shelf: str) -> None:
        """Record a change of a served index."""
        self.index_loads.inc()
        if shelf:
            return
        if previous:
            self.index_info.labels(previous).set(0)  # the shared files forget no label
        if SHARED_FOLDER not in os.environ:
            self.index_info.clear()
        self.index_info.labels(version).set(1)

    def shelf_removed(self, shelf: str) -> None:
        """Record that a shelf is gone."""
        self.shelf_passages.labels(shelf).set(0)

    def render(self, *, with_shelves: bool = True) -> bytes:
        """The metrics in Prometheus' text format, summed over all workers.

        Args:
            with_shelves: whether the metrics of shelves are there, which have their names.
        """
        registry = self.registry
        if folder := os.environ.get(SHARED_FOLDER):
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=folder)
        text = generate_latest(registry)
        if with_shelves:
            return text
        return _OF_SHELVES.sub(b"", text)
