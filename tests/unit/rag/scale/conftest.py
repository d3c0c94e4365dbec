"""One Ray cluster for all tests: a head without CPUs and nodes of one CPU, each with a raylet of
its own.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import wait_until
from tests.unit.retrievers.encoders.test_static import as_model2vec, tokenizer

PATIENCE = {  # for a machine that is busy with other work
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "300",
}


class Nodes:
    """The nodes of the cluster; `kill` is what a power cut does to one of them."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._running: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def start(self, count: int, **arguments: Any) -> None:
        """Make it `count` nodes, without counting the head."""
        while len(self._running) < count:
            self._running.append(
                _patiently(lambda: self._cluster.add_node(num_cpus=1, **_small(), **arguments))
            )

    def kill(self) -> set[int]:
        """kill -9 of the last node's raylet and all processes under it; their ids."""
        node = self._running.pop()
        raylet = node.all_processes["raylet"][0].process
        pids = {raylet.pid, *_below(raylet.pid)}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        raylet.wait()
        return pids

    def forget(self) -> None:
        """Take the last node away in good order."""
        import ray

        self._cluster.remove_node(self._running.pop())
        wait_until(
            lambda: sum(node["Alive"] for node in ray.nodes()) <= len(self._running) + 1,
            limit_s=60.0,
        )


def _patiently(start: Callable[[], Any], attempts: int = 4) -> Any:
    """Ray gives a raylet 30 seconds to start, which are few on a machine that is busy with other
    work.
    """
    for left in reversed(range(attempts)):
        before = {*_below(os.getpid())}
        try:
            return start()
        except Exception:
            for pid in {*_below(os.getpid())} - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                raise
    return None


def _small() -> dict[str, Any]:
    """Arguments of a node that starts fast: it does not wait until its agents have chosen their
    ports.
    """
    agents = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in agents]
        ports = dict(zip(agents, (item.getsockname()[1] for item in sockets), strict=True))
    return {**ports, "object_store_memory": 80 << 20, "include_log_monitor": False}


def _below(pid: int) -> list[int]:
    """Processes that a process has begun, and those that these have."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    result = [child for child, parent in parents.items() if parent == pid]
    return [*result, *(inner for child in result for inner in _below(child))]


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", **PATIENCE}
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True}
    cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args={**head, **_small()}))
    made = Nodes(cluster)
    made.start(2)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session")
def static_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static encoder: its processes import no torch, so they start in a second."""
    vectors = np.random.default_rng(3).standard_normal((11, 16)).astype(np.float32)
    return as_model2vec(tmp_path_factory.mktemp("static"), vectors, tokenizer())
