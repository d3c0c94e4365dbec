"""Connect to a Ray cluster, and refuse nodes that would not compute the same."""

import hashlib
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from rag.core.errors import MismatchedArtifactError, ResourceError
from rag.core.optional import DISTRIBUTION, installed_version, require

# Packages that decide the bytes of a vector.
_DECIDING = (DISTRIBUTION, "numpy", "torch", "tokenizers", "faiss-cpu")
_CODE = ("rag", "indexers", "retrievers")
_LOOK_TIMEOUT_S = 120.0


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """The module `ray`, connected to the cluster at `address` until the block ends; see
    `connect`.
    """
    is_new = not _ray().is_initialized()
    ray = connect(address)
    try:
        yield ray
    finally:
        if is_new:
            ray.shutdown()


def connect(address: str) -> ModuleType:
    """The module `ray`, connected to a cluster; a connection of this process is used again.

    Args:
        address: `HOST:PORT` of the cluster's head, or `auto` for the cluster of this machine.

    Raises:
        MissingDependencyError: Ray is not installed.
        ResourceError: there is no cluster at the address, or it has another version of Ray or of
            Python.
    """
    ray = _ray()
    if ray.is_initialized():
        return ray
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ResourceError(
            f"there is no usable Ray cluster at {address!r}: {reason}",
            hint="start one with `ray start --head --disable-usage-stats`, and give the address it shows",
        ) from error
    finally:
        # Ray replaces the handler of SIGTERM; this process keeps its own.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    return ray


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would take over the signal that Java throws for itself, and end a process that searches
    # BM25 too.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    return require("ray", extra="ray")


def on_node(node_id: str) -> object:
    """A scheduling strategy: this node and no other."""
    strategies = require("ray.util.scheduling_strategies", extra="ray")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)


def check_nodes(ray: ModuleType, files: Sequence[Path]) -> list[str]:
    """Look from every node at the installed packages, the code of this one, and `files`.

    Args:
        files: files of this machine that every node must see under the same path.

    Returns:
        The ids of the nodes that answer and have a CPU, in a fixed order.

    Raises:
        MismatchedArtifactError: a node has other packages, or sees other files under these paths.
        ResourceError: a node does not answer, or runs no tasks of this package, or none has a CPU.
    """
    paths = [str(path.absolute()) for path in files]
    expected = _facts(paths)
    task = ray.remote(_facts)
    looks = []
    for node in sorted(ray.nodes(), key=lambda node: str(node["NodeID"])):
        if node["Alive"]:
            strategy = on_node(node["NodeID"])
            options = task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
            looks.append((node, options.remote(paths)))
    workers = []
    for node, look in looks:
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, node {node['NodeID'][:8]})"
        try:
            seen = ray.get(look, timeout=_LOOK_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            alive = {other["NodeID"] for other in ray.nodes() if other["Alive"]}
            is_unreachable = isinstance(error, ray.exceptions.TaskUnschedulableError)
            # It died meanwhile.
            if is_unreachable or node["NodeID"] not in alive:
                continue
            raise ResourceError(
                f"{name} does not run tasks of this package: {error or 'no answer'}",
                hint=f"install '{DISTRIBUTION}[ray]' there, or see `ray status` and the logs of that node",
            ) from error
        for fact, value in expected.items():
            if seen[fact] != value:
                raise MismatchedArtifactError(
                    f"{name}: {fact} is {seen[fact] or 'missing'}, on this machine {value or 'missing'}",
                    hint="install the same packages on every node (pip install -c constraints.txt "
                    f"'{DISTRIBUTION}[ray]'), and use a folder on a disk that all nodes share",
                )
        if node["Resources"].get("CPU"):
            workers.append(node["NodeID"])
    if not workers:
        raise ResourceError("the Ray cluster has no CPU", hint="add nodes: `ray start --address …`")
    return workers


def _facts(paths: Sequence[str]) -> dict[str, str]:
    """What decides results on a node: packages, this code, files by checksum; "" where one is
    absent.
    """
    facts = {package: installed_version(package) or "" for package in _DECIDING}
    code = hashlib.sha256()
    for package in _CODE:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            for module in sorted(Path(folder).rglob("*.py")):
                name = module.relative_to(folder).as_posix()
                code.update(name.encode() + b"\0" + module.read_bytes())
    facts["the code of this package"] = code.hexdigest()[:12]
    for path in paths:
        begun = b""
        with suppress(OSError), open(path, "rb") as file:
            begun = file.read(1 << 20)
        facts[path] = hashlib.sha256(begun).hexdigest()[:12] if begun else ""
    return facts
