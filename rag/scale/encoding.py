"""Encode a corpus on a Ray cluster: a task per shard, which writes the shard's file on the shared disk.

The shards are those of one process, with the same bytes on processors of the same kind, and so is the ledger:
this process alone writes it, so that a build begun on a cluster may be finished on one machine, on another
cluster, or the other way round. A task whose node dies is run again by Ray on another node. Only paths go
into tasks, and only a line of the ledger comes back.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from indexers.embedding_shards import HEADER_NAME, EmbeddingShards
from indexers.embeddings import EmbeddingWriter, encode_rows, store_shard
from indexers.passages import HASHES_NAME, PassageStore
from indexers.protocols import EncoderIdentity, EncodesCorpus, PassageEncoder
from indexers.settings import SHARD_ROWS, VectorDtype
from rag.core.errors import MismatchedArtifactError, RagError, ResourceError
from rag.core.log import get_logger
from rag.scale.cluster import check_nodes, code_digest, connected

_ATTEMPTS = 8  # of a shard whose process dies
_POLL_S = 2.0
_TASKS_PER_CPU = 2  # handed out ahead, so that no CPU waits for this process

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Description of the job for a task; paths and names only.

    Attributes:
        place: folder of the embeddings, begun by an `EmbeddingWriter`.
        passages: folder of the passage store.
        encoder: identity of the encoder, as JSON; it is loaded under the name there.
        precision: arithmetic of the encoder, so that no node chooses another.
        code: `code_digest` of the process that hands out the tasks.
    """

    place: str
    passages: str
    encoder: Mapping[str, Any]
    precision: str
    code: str


def encode_on_cluster(
    ray: Any,
    place: Path,
    passages: PassageStore,
    encoder: PassageEncoder,
    dtype: VectorDtype,
    *,
    shard_rows: int = SHARD_ROWS,
    check: Callable[[], None] = lambda: None,
) -> EmbeddingShards:
    """Encode all passages on a cluster; without its first argument an `indexers.protocols.EncodesCorpus`.

    Args:
        ray: the connected module, see `rag.scale.cluster.connected`.

    Raises:
        MismatchedArtifactError: a node has other packages, sees other files, or loads another encoder.
        ResourceError: the cluster has no CPU, or a shard's process died again and again.
    """
    rows = len(passages)
    writer = EmbeddingWriter(place, rows=rows, encoder=encoder.identity, dtype=dtype, shard_rows=shard_rows)
    check_nodes(ray, [place / HEADER_NAME, passages.directory / HASHES_NAME])
    job = EncodingJob(
        str(place.absolute()), str(passages.directory.absolute()), encoder.identity.to_json(),
        getattr(encoder, "precision", "auto"), code_digest(),
    )  # fmt: skip
    return writer.completed(partial(_run, ray, job, writer, check))


def _run(
    ray: Any,
    job: EncodingJob,
    writer: EmbeddingWriter,
    check: Callable[[], None],
    done: Callable[[int], None],
) -> None:
    resources = ray.cluster_resources()
    if resources.get("CPU", 0) < 1:
        raise ResourceError("the Ray cluster has no CPU for tasks", hint="add nodes: `ray start --address …`")
    if ray.available_resources().get("CPU", 0) < 1:
        log.warning("all CPUs of the Ray cluster are taken: encoding begins when other work frees one")
    task = ray.remote(_encode_shard).options(
        num_cpus=1, num_gpus=1 if resources.get("GPU") else 0, max_retries=_ATTEMPTS
    )
    waiting, pending = list(writer.missing())[::-1], dict[Any, int]()
    try:
        while waiting or pending:
            room = _TASKS_PER_CPU * int(ray.cluster_resources().get("CPU", 1)) + 1
            while waiting and len(pending) < room:
                shard, start, stop = waiting.pop()
                pending[task.remote(job, shard, start, stop)] = shard
            ready, _ = ray.wait(list(pending), timeout=_POLL_S)
            for one in ready:
                line = _line(ray, one, pending.pop(one))
                writer.record(line)
                done(int(line["rows"]))
            check()
    finally:
        for one in pending:
            ray.cancel(one, force=True)


def _line(ray: Any, one: Any, shard: int) -> dict[str, Any]:
    """The result of a task; its error as it was raised on the node."""
    try:
        line: dict[str, Any] = ray.get(one)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RagError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise ResourceError(
            f"shard {shard} was begun {_ATTEMPTS + 1} times and its process died each time ({error})",
            hint="look at the memory of the nodes; the same command continues behind finished shards",
        ) from error
    return line


@contextmanager
def encoding_at(address: str | None) -> Iterator[dict[str, EncodesCorpus]]:
    """The argument `encode` of what encodes a corpus: on the cluster at `address`; none without one."""
    if address is None:
        yield {}
        return
    with connected(address) as ray:
        yield {"encode": partial(encode_on_cluster, ray)}


def _encode_shard(job: EncodingJob, shard: int, start: int, stop: int) -> dict[str, Any]:
    """Runs on a node: encode rows start … stop - 1 and write them; returns the shard's line in the ledger."""
    encoder, passages = _opened(job.passages, job.precision, job.code, tuple(job.encoder.items()))
    return store_shard(Path(job.place), shard, encode_rows(passages, encoder, start, stop))


@lru_cache(maxsize=1)  # a process of the cluster runs task after task of one job
def _opened(
    passages: str, precision: str, code: str, identity: tuple[tuple[str, Any], ...]
) -> tuple[PassageEncoder, PassageStore]:
    os.environ["OMP_NUM_THREADS"] = "1"  # a task has one CPU
    from retrievers.encoders.open import load_like

    node = os.uname().nodename
    if code_digest() != code:
        raise MismatchedArtifactError(
            f"{node} has other code of this package than the machine that began the encoding",
            hint="install the same version on every node",
        )
    wanted = EncoderIdentity.from_json(dict(identity))
    try:
        encoder = load_like(wanted, precision=precision)
    except RagError as error:
        raise type(error)(f"{node}: {error.message}", hint=error.hint) from error
    if differences := wanted.differences(encoder.identity):
        raise MismatchedArtifactError(
            f"{node} loads another encoder under {wanted.name!r} ({'; '.join(differences)})",
            hint="keep the encoder on a disk that all nodes share",
        )
    if torch := sys.modules.get("torch"):  # a static encoder needs none
        torch.set_num_threads(1)
    return encoder, PassageStore.open(passages)
