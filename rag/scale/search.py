"""Search with the vectors of an index divided among processes of a Ray cluster, behind the usual server.

Every process (an actor) opens the index on the shared disk and searches some of its shard files only, so each
node maps a part of the vectors. The results are merged by score and row, and are the same as on one machine,
ties included. A part may have several actors, on different nodes, which take turns and replace each other. A
part whose actors are all dead or slow is left out at the deadline, and the answer states this.
"""

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from indexers.embedding_shards import EmbeddingShards
from indexers.exact import FlatIndex, check_queries, exact_scores, exact_search, select_best
from indexers.faiss_index import FaissIndex, faiss
from indexers.index import Index
from indexers.selected import Selection
from rag.core.arrays import Float32, Int64
from rag.core.errors import ConfigError, MismatchedArtifactError, RagError, ResourceError, RetrievalError
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME
from rag.core.progress import SHARD, StageTimer
from rag.scale.cluster import ClusterOptions, check_nodes, connect, on_node, parse_cluster

_START_TIMEOUT_S = 120.0
_PAUSE_S = 0.1  # before the same actor is asked again
_IMPATIENCE = 0.25  # share of the deadline after which another actor of the part is asked, too

log = get_logger(__name__)

Found = tuple[Float32, Float32, Int64]
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
        self._mine: Selection | None = None  # the rows of this part

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

    def search(self, queries: Float32, wanted: int, effort: int | None) -> Found:
        """The best `wanted` candidates of queries (n, D) in this part; all exact without an effort."""
        index = self._open()
        embeddings = cast("EmbeddingShards", index.embeddings)
        start, mine = embeddings.part(self._part.first, self._part.stop)
        if effort is None:
            scores, rows = exact_search(mine, queries, wanted)
            return scores, scores, np.where(rows >= 0, rows + start, -1)
        if self._mine is None and len(mine) < len(embeddings):
            rows_of_all = np.arange(len(embeddings))
            self._mine = Selection((rows_of_all >= start) & (rows_of_all < start + len(mine)))
        near, rows = cast("FaissIndex", index.dense).candidates(queries, wanted, effort, self._mine)
        near = np.where(rows >= 0, near, np.float32(-np.inf))
        return near, exact_scores(embeddings, queries, rows), rows


@dataclass(slots=True)
class _Call:
    """One search in all parts."""

    began: float
    answers: dict[int, Found] = field(default_factory=dict)
    running: dict[Any, int] = field(default_factory=dict)  # call → part
    sent: dict[int, int] = field(default_factory=dict)  # part → how often
    again_at: dict[int, float] = field(default_factory=dict)  # part → time
    seconds: dict[int, float] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)


class ShardedIndex:
    """Vector search whose parts are searched by actors; implements `indexers.protocols.TimedVectorIndex`.

    Args:
        ray: the connected module.
        whole: search of the index on this machine, for its settings and for filtered searches.
        actors: for each part its actors.
        deadline_s: seconds after which a search ends without the parts that have not answered.

    Attributes:
        deadline_s: as given.
    """

    def __init__(
        self,
        ray: Any,
        whole: FlatIndex | FaissIndex,
        parts: Sequence[Part],
        actors: Sequence[Sequence[Any]],
        deadline_s: float,
    ) -> None:
        self._ray, self._whole, self._parts, self._actors = ray, whole, parts, actors
        self.deadline_s, self._turns = deadline_s, [itertools.count() for _ in parts]
        self.dim = whole.dim

    def __len__(self) -> int:
        return len(self._whole)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`; parts that do not answer in time are left out.

        A search among selected rows is made by this process, which maps the index as well.
        """
        if selected is not None:
            return self._whole.search(queries, top_k, selected)
        return self.search_timed(queries, top_k, StageTimer())

    def search_timed(self, queries: Float32, top_k: int, timer: StageTimer) -> tuple[Float32, Int64]:
        """`search`; the timer gets the time of each part under its name, and the names of those left out.

        Raises:
            RetrievalError: no part answered in time.
        """
        queries, end = check_queries(queries, self.dim, top_k), time.monotonic() + self.deadline_s
        if isinstance(self._whole, FlatIndex):
            _, exact, rows = self._ask(queries, min(top_k, len(self)), None, end, timer)
            return select_best(exact, rows, top_k)

        def find(wanted: int, effort: int) -> tuple[Float32, Int64]:
            near, exact, rows = self._ask(queries, wanted, effort, end, timer)
            best = np.lexsort((rows, -near))[:, :wanted]  # as many candidates as one machine takes
            return np.take_along_axis(exact, best, axis=1), np.take_along_axis(rows, best, axis=1)

        exact, rows = self._whole.widen(find, top_k)
        return select_best(exact, rows, top_k)

    def _ask(self, queries: Float32, wanted: int, effort: int | None, end: float, timer: StageTimer) -> Found:
        call = self._gather((queries, wanted, effort), end)
        for number, seconds in call.seconds.items():
            stage = self._parts[number].name
            timer.timings_ms[stage] = timer.timings_ms.get(stage, 0.0) + 1000.0 * seconds
        late = [number for number in range(len(self._parts)) if number not in call.answers]
        for number in late:
            name, reason = self._parts[number].name, call.reasons.get(number, "no answer in time")
            log.error("%s is left out: %s", name, reason)
            timer.missing[name] = None
        if not call.answers:
            raise RetrievalError(
                f"no part of the index answered within {self.deadline_s:g} s "
                f"({'; '.join(dict.fromkeys(call.reasons.values())) or 'the cluster is silent'})",
                hint="look at `ray status`; dead actors are started again by themselves",
            )
        near, exact, rows = (
            np.concatenate(column, axis=1)
            for column in zip(*(call.answers[number] for number in sorted(call.answers)), strict=True)
        )
        return near, exact, rows

    def _gather(self, arguments: tuple[Any, ...], end: float) -> _Call:
        """Ask every part; ask again where an actor has died, and a second one where the first is slow."""
        call = _Call(time.monotonic())
        impatient_at = call.began + _IMPATIENCE * self.deadline_s
        for number in range(len(self._parts)):
            self._send(call, number, arguments)
        while len(call.answers) < len(self._parts) and (now := time.monotonic()) < end:
            for number in [number for number, at in call.again_at.items() if at <= now]:
                del call.again_at[number]
                self._send(call, number, arguments)
            if now >= impatient_at:
                for number in set(call.running.values()) - set(call.answers):
                    if call.sent[number] == 1 and len(self._actors[number]) > 1:
                        self._send(call, number, arguments)
            times = [end, *call.again_at.values(), *([impatient_at] if now < impatient_at else [])]
            patience = max(0.0, min(times) - now)
            if not call.running:
                time.sleep(patience)
                continue
            for one in self._ray.wait(list(call.running), timeout=patience)[0]:
                self._take(call, one)
        for one in call.running:
            self._ray.cancel(one)
        return call

    def _send(self, call: _Call, number: int, arguments: tuple[Any, ...]) -> None:
        actors = self._actors[number]
        actor = actors[next(self._turns[number]) % len(actors)]
        call.sent[number] = call.sent.get(number, 0) + 1
        call.running[actor.search.remote(*arguments)] = number

    def _take(self, call: _Call, one: Any) -> None:
        """The result of an actor; after a failure its part is asked again, soon if by another actor."""
        number = call.running.pop(one)
        if number in call.answers:
            return
        try:
            call.answers[number] = self._ray.get(one)
            call.seconds[number] = time.monotonic() - call.began
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            reason = cause.message if isinstance(cause, RagError) else f"its process died ({error})"
            call.reasons[number] = reason.splitlines()[0]
            has_other = call.sent[number] < len(self._actors[number])
            if number not in call.running.values():
                call.again_at[number] = time.monotonic() + (0.0 if has_other else _PAUSE_S)

    def processes(self) -> list[list[tuple[int, str]]]:
        """For each part process id and machine of each of its actors.

        Raises:
            RagError: an actor cannot open its part.
            ResourceError: an actor does not start.
        """
        asked = [[actor.describe.remote() for actor in actors] for actors in self._actors]
        try:
            found: list[list[tuple[int, str]]] = [
                self._ray.get(one, timeout=_START_TIMEOUT_S) for one in asked
            ]
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RagError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise ResourceError(
                f"a search process did not start on the cluster: {error}", hint="look at `ray status`"
            ) from error
        return found

    def close(self) -> None:
        """End the actors."""
        for actor in itertools.chain.from_iterable(self._actors):
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
            f"{index.directory} cannot be searched in parts: it has no passage vectors, or was updated",
            hint="build it anew with --retriever dense or hybrid",
        )
    workers = [node for node in nodes if node["Resources"].get("CPU")] or list(nodes)
    count = min(options.shards or len(workers), embeddings.shards)
    if index.manifest["dense"]["index_type"] == "hnsw" and count > 1:
        if options.shards:
            raise ConfigError("the graph of an hnsw index cannot be divided", hint="use shards=1,replicas=…")
        count = 1
    if options.shards and options.shards > count:
        raise ConfigError(
            f"{index.directory} has {embeddings.shards} shard files, fewer than shards={options.shards}",
            hint="ask for fewer, or build the index with a smaller --shard-rows",
        )
    bounds = [round(embeddings.shards * number / count) for number in range(count + 1)]
    cores = (os.cpu_count() or 1) * len(workers)
    parts = [
        Part(
            str(index.directory), index.version, first, stop, f"{SHARD}{number + 1} of {count}",
            max(1, cores // (count * options.replicas)),
        )
        for number, (first, stop) in enumerate(itertools.pairwise(bounds))
    ]  # fmt: skip
    kind, run = ray.remote(PartSearch), os.urandom(4).hex()
    actors = [
        [
            kind.options(
                name=f"rag-search-{index.version}-{run}-{number}.{replica}", num_cpus=0, max_restarts=-1,
                max_task_retries=0,
                scheduling_strategy=on_node(workers[(number + replica) % len(workers)]["NodeID"], soft=True),
            ).remote(part)
            for replica in range(options.replicas)
        ]
        for number, part in enumerate(parts)
    ]  # fmt: skip
    sharded = ShardedIndex(ray, whole, parts, actors, options.deadline)
    try:
        sharded.processes()
    except BaseException:
        sharded.close()
        raise
    return sharded
