"""Exact search with the vectors of an index divided among the nodes of a Ray cluster, behind a
server.

On every node a process (an actor) opens the index on the shared disk and searches some of its shard
files, so each node maps a part of the vectors. The results are those of one machine, ties included.
An actor that dies is started again on the next node, and asked again. A search of which a part is
not answered in time fails: no answer leaves passages out.
"""

import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.exact import FlatIndex, check_queries, exact_search, select_best
from indexers.index import Index
from indexers.protocols import Selection
from rag.core.arrays import Float32, Int64
from rag.core.errors import (
    ConfigError,
    MismatchedArtifactError,
    RagError,
    RetrievalError,
)
from rag.core.manifest import MANIFEST_NAME
from rag.scale.cluster import check_nodes, connect, on_node

# Of a search.
_DEADLINE_S = 10.0
_START_TIMEOUT_S = 120.0
# Before a dead actor is asked again.
_PAUSE_S = 0.1
# Without any resource Ray lets a random node choose, which may not know a new one.
_RESERVED_BYTES = 1 << 20


class PartSearch:
    """Searches one part of an index; runs as an actor. It opens the index at its first call.

    Args:
        directory: the index, on a disk that all nodes share.
        version: version of the index that the server opened.
        first, stop: shard files first … stop - 1 of the embeddings.
    """

    def __init__(self, directory: Path, version: str, first: int, stop: int) -> None:
        self._directory = directory
        self._version = version
        self._files = (first, stop)
        self._opened: tuple[int, EmbeddingShards] | None = None

    def process(self) -> int:
        """Process id, once the part is open."""
        self._open()
        return os.getpid()

    def _open(self) -> tuple[int, EmbeddingShards]:
        """First row and vectors of the part."""
        if self._opened is None:
            # Ray allows one.
            faiss.omp_set_num_threads(os.cpu_count() or 1)
            index = Index.open(self._directory, verify="none")
            if index.version != self._version:
                raise MismatchedArtifactError(
                    f"{os.uname().nodename}: {self._directory} is of build {index.version}, the server's of "
                    f"build {self._version}",
                    hint="reload the server, so that it opens the new build",
                )
            self._opened = index.require_dense().embeddings.part(*self._files)
        return self._opened

    def search(self, queries: Float32, top_k: int) -> tuple[Float32, Int64]:
        """Scores and rows (n, K) of the best of queries (n, D) in this part."""
        start, vectors = self._open()
        scores, rows = exact_search(vectors, queries, top_k)
        return scores, np.where(rows >= 0, rows + start, -1)


class ShardedIndex:
    """Vector search whose parts are searched by actors; implements
    `indexers.protocols.VectorIndex`.

    Args:
        ray: the connected module.
        index: its vectors are searched; filtered searches stay with this machine.
        parts: first shard file of each part, and the first behind it.
        nodes: ids of the nodes that actors are started on, in turns.

    Attributes:
        deadline_s: seconds after which a search fails if a part has not answered.
    """

    def __init__(
        self, ray: Any, index: Index, parts: Sequence[tuple[int, int]], nodes: Sequence[str]
    ) -> None:
        self._ray = ray
        self._index_version = (index.directory, index.version)
        self._parts = parts
        self._nodes = nodes
        self._whole = index.require_dense().vectors
        self.deadline_s = _DEADLINE_S
        self.dim = self._whole.dim
        # A part's actor is on the node of its turn.
        self._turns = list(range(len(parts)))
        self._lock = threading.Lock()
        self._actors = [self._start(number) for number in range(len(parts))]

    def __len__(self) -> int:
        return len(self._whole)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`; among selected rows this process searches, which maps the index
        as well.

        Raises:
            RetrievalError: a part did not answer in time.
            MismatchedArtifactError: a part that was started again finds another build of the index.
        """
        if selected is not None:
            return self._whole.search(queries, top_k, selected)
        queries = check_queries(queries, self.dim, top_k)
        answers = self._ask(self.deadline_s, "search", queries, min(top_k, len(self)))
        scores, rows = (np.concatenate(column, axis=1) for column in zip(*answers, strict=True))
        return select_best(scores, rows, top_k)

    def processes(self) -> list[int]:
        """For each part the process id of its actor, once it is open."""
        return self._ask(_START_TIMEOUT_S, "process")

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _start(self, number: int) -> Any:
        node = on_node(self._nodes[self._turns[number] % len(self._nodes)])
        kind = self._ray.remote(PartSearch).options(
            num_cpus=0, memory=_RESERVED_BYTES, max_restarts=0, scheduling_strategy=node
        )
        return kind.remote(*self._index_version, *self._parts[number])

    def _ask(self, timeout_s: float, method: str, *arguments: Any) -> list[Any]:
        """What every part answers, asked again where its actor has died, until the timeout."""
        end = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        reasons: dict[int, str] = {}
        running: dict[Any, tuple[int, Any]] = {}

        def ask(number: int) -> None:
            actor = self._actors[number]
            running[getattr(actor, method).remote(*arguments)] = number, actor

        for number in range(len(self._parts)):
            ask(number)
        while running and time.monotonic() < end:
            left_s = max(0.0, end - time.monotonic())
            for call in self._ray.wait(list(running), timeout=left_s)[0]:
                number, actor = running.pop(call)
                try:
                    answers[number] = self._ray.get(call)
                except self._ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)
                    if isinstance(cause, RagError):
                        raise cause from None
                    reasons[number] = f"it died ({error})".splitlines()[0]
                    time.sleep(_PAUSE_S)
                    with self._lock:  # another search may have started it again
                        if self._actors[number] is actor:
                            self._ray.kill(actor)
                            self._turns[number] += 1
                            self._actors[number] = self._start(number)
                    ask(number)
        late = sorted(number for number, _ in running.values())
        for call in running:
            self._ray.cancel(call)
        if late:
            why = "; ".join(f"part {n + 1}: {reasons.get(n, 'no answer')}" for n in late)
            raise RetrievalError(
                f"a part of the index did not answer within {timeout_s:g} s ({why})",
                hint="look at `ray status`; dead actors are started again by themselves",
            )
        return [answers[number] for number in range(len(self._parts))]


def open_sharded(directory: str | Path, address: str) -> Index:
    """Open an index whose vectors are searched on a cluster, a part on each node that has CPUs.

    Args:
        directory: the index, on a disk that all nodes share.
        address: see `rag.scale.cluster.connect`.

    Raises:
        ConfigError: the index is not of type flat.
        MismatchedArtifactError: a node has other packages, or sees another index.
        ResourceError: there is no cluster, or no CPU in it.
        RetrievalError: a process does not start.
    """
    index = Index.open(Path(directory).resolve())
    try:
        ray = connect(address)
        embeddings = index.embeddings
        if embeddings is None or not isinstance(index.dense, FlatIndex):
            raise ConfigError(
                f"{index.directory} cannot be searched in parts: its vectors are not of index type flat",
                hint="build it anew: `rag index … --index-type flat`, or serve it without {ray}",
                arguments=["ray"],
            )
        workers = check_nodes(ray, [index.directory / MANIFEST_NAME])
        shards = len(embeddings.layout.shards())
        count = min(len(workers), shards)
        bounds = [round(shards * number / count) for number in range(count + 1)]
        sharded = ShardedIndex(ray, index, list(itertools.pairwise(bounds)), workers)
        index.dense = sharded
        sharded.processes()
    except BaseException:
        index.close()
        raise
    return index
