"""Connect to a Ray cluster, and refuse nodes that would not compute the same."""

import hashlib
import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from rag.config import Config, load_config, parse_overrides
from rag.core.errors import ConfigError, MismatchedArtifactError, ResourceError
from rag.core.optional import DISTRIBUTION, require

_DECIDING = (DISTRIBUTION, "numpy", "torch", "tokenizers", "faiss-cpu")  # what decides the bytes of a vector
_CODE = ("rag", "indexers", "retrievers")
_LOOK_TIMEOUT_S = 120.0


class ClusterOptions(Config):
    """How a search is distributed.

    Attributes:
        shards: parts of the vectors, each searched by a process of its own; default: one per node.
        replicas: processes for each part.
        deadline: seconds after which an answer leaves out the parts that are not searched yet.
    """

    shards: int | None = Field(default=None, ge=1)
    replicas: int = Field(default=1, ge=1)
    deadline: float = Field(default=5.0, gt=0)


def parse_cluster(text: str) -> tuple[str, ClusterOptions]:
    """Parse the address of a cluster, with options of the search after a comma.

    Raises:
        ConfigError: there is no address, or no such option.

    Example:
        >>> parse_cluster("auto,shards=4,replicas=2")
        ('auto', ClusterOptions(shards=4, replicas=2, deadline=5.0))
    """
    address, *given = (part.strip() for part in text.split(","))
    if not address or "=" in address:
        raise ConfigError(f"ray is {text!r}", hint="give HOST:PORT or auto first, as in auto,replicas=2")
    try:
        return address, load_config(ClusterOptions, overrides=parse_overrides(given))
    except ConfigError as error:
        raise ConfigError(f"ray {text!r}: {error}") from error


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at `address` until the block ends; see `connect`."""
    is_new = not _ray().is_initialized()
    ray = connect(address)
    try:
        yield ray
    finally:
        if is_new:
            ray.shutdown()


def connect(address: str) -> Any:
    """The module `ray`, connected to the cluster at `address`.

    A connection that this process has already is used. Ray's usage reports are switched off for
    this process; a cluster's own are decided where it is started (`ray start --disable-usage-stats`).

    Args:
        address: `HOST:PORT` of the cluster's head, or `auto` for the cluster of this machine.

    Raises:
        MissingDependencyError: Ray is not installed.
        ResourceError: there is no cluster at the address, or it has another version of Ray or of Python.
    """
    ray = _ray()
    if ray.is_initialized():
        return ray
    with _own_signals():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise ResourceError(
                f"there is no usable Ray cluster at {address!r}: {reason}",
                hint="start one with `ray start --head --disable-usage-stats`, and give the address it shows",
            ) from error
    return ray


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would take over the signal that Java throws for itself, and end a process that searches BM25 too.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    return require("ray", extra="ray")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM when it connects; this process keeps its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def node_name(node: Mapping[str, Any]) -> str:
    """A node of `ray.nodes()` for messages."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, node {node['NodeID'][:8]})"


def live_nodes(ray: Any) -> list[dict[str, Any]]:
    """The nodes of the cluster that answer, in a fixed order."""
    return sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeID"]))


def on_node(node_id: str, *, soft: bool = False) -> Any:
    """A scheduling strategy: this node and no other; if `soft`, another once this one is gone."""
    strategies = require("ray.util.scheduling_strategies", extra="ray")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=soft)


def check_nodes(ray: Any, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Look from every node at the installed packages and at `files`.

    Args:
        files: files of this machine that every node must see under the same path.

    Returns:
        The nodes, as `ray.nodes()` describes them.

    Raises:
        MismatchedArtifactError: a node has other versions, or sees other files under these paths.
        ResourceError: a node does not answer.
    """
    paths = [str(path.absolute()) for path in files]
    look = _look_around()
    expected, nodes = look(_DECIDING, paths), live_nodes(ray)
    task = ray.remote(look)
    asked = {
        task.options(num_cpus=0, max_retries=0, scheduling_strategy=on_node(node["NodeID"])).remote(
            _DECIDING, paths
        ): node
        for node in nodes
    }
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_TIMEOUT_S)
    if late:
        names = ", ".join(node_name(asked[one]) for one in late)
        raise ResourceError(
            f"no answer from {names} within {_LOOK_TIMEOUT_S:.0f} s",
            hint="look at `ray status` and at the logs of these nodes, or remove them from the cluster",
        )
    there = []
    for one in ready:
        name = node_name(asked[one])
        try:
            found = ray.get(one)
        except ray.exceptions.RayError as error:
            lost = ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError
            alive = {node["NodeID"] for node in live_nodes(ray)}
            if isinstance(error, lost) or asked[one]["NodeID"] not in alive:
                continue  # it died meanwhile
            raise ResourceError(f"{name} runs no tasks: {error}", hint="see the logs of that node") from error
        _compare(name, found, expected)
        there.append(asked[one])
    return sorted(there, key=lambda node: str(node["NodeID"]))


def _compare(node: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for package, version in expected["versions"].items():
        if (seen := found["versions"][package]) != version:
            raise MismatchedArtifactError(
                f"{node} has {package} {seen or 'not installed'}, this machine has {version or 'none'}",
                hint="install the same packages on every node: pip install -c constraints.txt "
                f"'{DISTRIBUTION}[ray]'",
            )
    for path, digest in expected["files"].items():
        seen = found["files"][path]
        if seen is None:
            raise MismatchedArtifactError(
                f"{node} does not see {path}", hint="use a folder on a disk that all nodes share"
            )
        if seen != digest:
            raise MismatchedArtifactError(
                f"{node} sees another file under {path} than this machine",
                hint="use a folder on a disk that all nodes share",
            )


def code_digest() -> str:
    """Hex sha256 of the source of the packages that encode and search, as installed here."""
    digest = hashlib.sha256()
    for package in _CODE:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            for file in sorted(Path(folder).rglob("*.py")):
                digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _look_around() -> Callable[[Sequence[str], Sequence[str]], dict[str, Any]]:
    """The function that reports what a node has; it runs where this package is missing, too."""

    def look(packages: Sequence[str], paths: Sequence[str]) -> dict[str, Any]:
        import hashlib
        from importlib import metadata
        from pathlib import Path

        def version(package: str) -> str | None:
            try:
                return metadata.version(package)
            except metadata.PackageNotFoundError:
                return None

        def digest(path: str) -> str | None:
            try:
                with Path(path).open("rb") as file:
                    return hashlib.sha256(file.read(1 << 20)).hexdigest()
            except OSError:
                return None

        versions = {package: version(package) for package in packages}
        return {"versions": versions, "files": {path: digest(path) for path in paths}}

    return look
