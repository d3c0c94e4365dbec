"""Search with the vectors of an index divided among processes of a Ray cluster, behind the usual server.

Every process (an actor) opens the index on the shared disk and searches some of its shard files only, so each
node maps a part of the vectors. The results are merged by score and row, and are the same as on one machine,
ties included. An actor that dies is started again, on another node if need be, and asked
again. A search of which a part is not answered before the deadline fails: no answer leaves passages out.
"""

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.exact import FlatIndex, check_queries, exact_scores, exact_search, select_best
from indexers.faiss_index import FaissIndex, faiss
from indexers.index import Index
from indexers.selected import Selection
from rag.core.arrays import Float32, Int64
from rag.core.errors import ConfigError, MismatchedArtifactError, RagError, ResourceError, RetrievalError
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME
from rag.scale.cluster import ClusterOptions, check_nodes, connect, on_node, parse_cluster

_START_TIMEOUT_S = 120.0
_PAUSE_S = 0.1  # before a dead actor is asked again

log = get_logger(__name__)

Candidates = tuple[Float32, Float32, Int64]
"""Scores (n, K) by which candidates are taken, exact scores (n, K), and rows (n, K)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an index, as an actor has to open it.

    Attributes:
        directory: the index, on a disk that all nodes share.
        version: version of the index that the server opened.
        first, stop: shard files first … stop - 1 of the embeddings.
        name: name of the part for messages.
        threads: threads of a search.
    """

    directory: str
    version: str
    first: int
    stop: int
    name: str
    threads: int


class PartSearch:
    """Searches one part of an index; runs as an actor. It opens the index at its first call."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._index: Index | None = None
        self._rows: Selection | None = None  # of this part

    def describe(self) -> tuple[int, str]:
        """Process id and name of the machine, once the part is open."""
        self._open()
        return os.getpid(), os.uname().nodename

    def _open(self) -> Index:
        if self._index is None:
            part, node = self._part, os.uname().nodename
            faiss.omp_set_num_threads(part.threads)
            try:
                index = Index.open(part.directory, verify="none")
            except RagError as error:
                raise type(error)(f"{part.name} on {node}: {error.message}", hint=error.hint) from error
            if index.version != part.version:
                raise MismatchedArtifactError(
                    f"{part.name} on {node}: {part.directory} is of build {index.version}, the server's of "
                    f"build {part.version}",
                    hint="reload the server, so that it opens the new build",
                )
            self._index = index
        return self._index

    def search(self, queries: Float32, wanted: int, effort: int | None) -> Candidates:
        """The best `wanted` candidates of queries (n, D) in this part; all exact without an effort."""
        index = self._open()
        embeddings = cast("EmbeddingShards", index.embeddings)
        start, mine = embeddings.part(self._part.first, self._part.stop)
        if effort is None:
            scores, rows = exact_search(mine, queries, wanted)
            return scores, scores, np.where(rows >= 0, rows + start, -1)
        if self._rows is None and len(mine) < len(embeddings):
            rows_of_all = np.arange(len(embeddings))
            self._rows = Selection((rows_of_all >= start) & (rows_of_all < start + len(mine)))
        near, rows = cast("FaissIndex", index.dense).candidates(queries, wanted, effort, self._rows)
        near = np.where(rows >= 0, near, np.float32(-np.inf))
        return near, exact_scores(embeddings, queries, rows), rows


class ShardedIndex:
    """Vector search whose parts are searched by actors; implements `indexers.protocols.VectorIndex`.

    Args:
        ray: the connected module.
        whole: search of the index on this machine, for its settings and for filtered searches.
        actors: for each part its actor.
        deadline_s: seconds after which a search fails if a part has not answered.

    Attributes:
        deadline_s: as given.
    """

    def __init__(
        self,
        ray: Any,
        whole: FlatIndex | FaissIndex,
        parts: Sequence[Part],
        actors: Sequence[Any],
        deadline_s: float,
    ) -> None:
        self._ray, self._whole, self._parts, self._actors = ray, whole, parts, actors
        self.deadline_s, self.dim = deadline_s, whole.dim

    def __len__(self) -> int:
        return len(self._whole)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`; among selected rows this process searches, which maps the index as well.

        Raises:
            RetrievalError: a part did not answer in time.
        """
        if selected is not None:
            return self._whole.search(queries, top_k, selected)
        queries, end = check_queries(queries, self.dim, top_k), time.monotonic() + self.deadline_s
        if isinstance(self._whole, FlatIndex):
            _, exact, rows = self._ask(end, queries, min(top_k, len(self)), None)
            return select_best(exact, rows, top_k)

        def find(wanted: int, effort: int) -> tuple[Float32, Int64]:
            near, exact, rows = self._ask(end, queries, wanted, effort)
            best = np.lexsort((rows, -near))[:, :wanted]  # as many candidates as one machine takes
            return np.take_along_axis(exact, best, axis=1), np.take_along_axis(rows, best, axis=1)

        exact, rows = self._whole.widen(find, top_k)
        return select_best(exact, rows, top_k)

    def _ask(self, end: float, *arguments: Any) -> Candidates:
        """Ask every part, and again where its actor has died, until the deadline."""
        answers: dict[int, Candidates] = {}
        reasons: dict[int, str] = {}
        running = {actor.search.remote(*arguments): number for number, actor in enumerate(self._actors)}
        while running and (now := time.monotonic()) < end:
            for call in self._ray.wait(list(running), timeout=end - now)[0]:
                number = running.pop(call)
                try:
                    answers[number] = self._ray.get(call)
                except self._ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)
                    reasons[number] = cause.message if isinstance(cause, RagError) else f"it died ({error})"
                    time.sleep(_PAUSE_S)
                    running[self._actors[number].search.remote(*arguments)] = number
        for call in running:
            self._ray.cancel(call)
        if late := sorted(running.values()):
            why = "; ".join(
                f"{self._parts[number].name}: {reasons.get(number, 'no answer').splitlines()[0]}"
                for number in late
            )
            raise RetrievalError(
                f"a part of the index did not answer within {self.deadline_s:g} s ({why})",
                hint="look at `ray status`; dead actors are started again by themselves",
            )
        near, exact, rows = (
            np.concatenate(column, axis=1)
            for column in zip(*(answers[number] for number in sorted(answers)), strict=True)
        )
        return near, exact, rows

    def processes(self) -> list[tuple[int, str]]:
        """For each part process id and machine of its actor.

        Raises:
            RagError: an actor cannot open its part.
            ResourceError: an actor does not start.
        """
        described = [actor.describe.remote() for actor in self._actors]
        try:
            return list(self._ray.get(described, timeout=_START_TIMEOUT_S))
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RagError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise ResourceError(
                f"a search process did not start on the cluster: {error}", hint="look at `ray status`"
            ) from error

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)


def open_sharded(directory: str | Path, cluster: str) -> Index:
    """Open an index whose vectors are searched on a cluster.

    Args:
        directory: the index, on a disk that all nodes share.
        cluster: see `parse_cluster`.

    Raises:
        ConfigError: the index has no vectors, or cannot be divided so.
        MismatchedArtifactError: a node has other packages, or sees another index.
        ResourceError: there is no cluster, or a process does not start.
    """
    address, options = parse_cluster(cluster)
    index, ray = Index.open(Path(directory).resolve()), connect(address)
    try:
        nodes = check_nodes(ray, [index.directory / MANIFEST_NAME])
        index.dense = _sharded(ray, index, nodes, options)
    except BaseException:
        index.close()
        raise
    return index


def _sharded(
    ray: Any, index: Index, nodes: Sequence[Mapping[str, Any]], options: ClusterOptions
) -> ShardedIndex:
    whole, embeddings = index.dense, index.embeddings
    if embeddings is None or not isinstance(whole, FlatIndex | FaissIndex):
        raise ConfigError(
            f"{index.directory} cannot be searched in parts: it has no passage vectors",
            hint="build it anew with --retriever dense or hybrid",
        )
    workers = [node for node in nodes if node["Resources"].get("CPU")] or list(nodes)
    count = min(options.shards or len(workers), embeddings.shards)
    if index.manifest["dense"]["index_type"] == "hnsw" and count > 1:
        if options.shards:
            raise ConfigError("the graph of an hnsw index cannot be divided", hint="use shards=1")
        count = 1
    if options.shards and options.shards > count:
        raise ConfigError(
            f"{index.directory} has {embeddings.shards} shard files, fewer than shards={options.shards}",
            hint="ask for fewer, or build the index with a smaller --shard-rows",
        )
    bounds = [round(embeddings.shards * number / count) for number in range(count + 1)]
    cores = (os.cpu_count() or 1) * len(workers)
    threads = max(1, cores // count)
    parts = [
        Part(str(index.directory), index.version, first, stop, f"shard {number} of {count}", threads)
        for number, (first, stop) in enumerate(itertools.pairwise(bounds), start=1)
    ]
    kind = ray.remote(PartSearch)
    actors = [
        kind.options(
            num_cpus=0, max_restarts=-1, max_task_retries=0,
            scheduling_strategy=on_node(workers[number % len(workers)]["NodeID"], soft=True),
        ).remote(part)
        for number, part in enumerate(parts)
    ]  # fmt: skip
    sharded = ShardedIndex(ray, whole, parts, actors, options.deadline)
    try:
        sharded.processes()
    except BaseException:
        sharded.close()
        raise
    return sharded
