"""Encode a corpus on a Ray cluster: a task per shard, which writes the shard's file on the shared
disk.

The shards are those of one process, with the same bytes on processors of the same kind, so that a
build begun on a cluster may be finished on one machine, on another cluster, or the other way round.
A task whose node dies is run again by Ray on another node.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from indexers import embeddings
from indexers.embeddings import (
    HEADER_NAME,
    EmbeddingShards,
    begin_shards,
    header_of,
    store_shard,
)
from indexers.passages import HASHES_NAME, PassageStore
from indexers.protocols import EncoderIdentity, EncodesCorpus, PassageEncoder
from indexers.settings import SHARD_ROWS, VectorDtype
from rag.core.errors import MismatchedArtifactError, RagError, ResourceError
from rag.core.files import clean_directory
from rag.core.log import Progress
from rag.scale.cluster import check_nodes, connected

_ATTEMPTS = 8  # of a shard whose process dies


@contextmanager
def encoding_at(address: str | None) -> Iterator[dict[str, EncodesCorpus]]:
    """The argument `encode` of what encodes a corpus: on the cluster at `address`; none without
    one.
    """
    if address is None:
        yield {}
        return
    with connected(address) as ray:
        yield {"encode": partial(encode_on_cluster, ray)}


def encode_on_cluster(
    ray: Any,
    place: Path,
    passages: PassageStore,
    encoder: PassageEncoder,
    dtype: VectorDtype,
    *,
    shard_rows: int = SHARD_ROWS,
) -> EmbeddingShards:
    """Encode all passages on a cluster; without its first argument an
    `indexers.protocols.EncodesCorpus`.

    Args:
        ray: the connected module, see `rag.scale.cluster.connected`.

    Raises:
        MismatchedArtifactError: a node has other packages, sees other files, or loads another
            encoder.
        ResourceError: the cluster has no CPU, or a shard's process died again and again.
    """
    header = header_of(passages, encoder, dtype, shard_rows)
    missing = begin_shards(place, header)
    check_nodes(ray, [place / HEADER_NAME, passages.directory / HASHES_NAME])
    folders = place.absolute(), passages.directory.absolute()
    precision = getattr(encoder, "precision", "auto")
    resources = ray.cluster_resources()
    if resources.get("CPU", 0) < 1:
        raise ResourceError(
            "the Ray cluster has no CPU for tasks", hint="add nodes: `ray start --address …`"
        )
    task = ray.remote(_encode_shard).options(
        num_cpus=1, num_gpus=1 if resources.get("GPU") else 0, max_retries=_ATTEMPTS
    )
    pending = {task.remote(*folders, precision, encoder.identity, *part): part for part in missing}
    try:
        with Progress(
            sum(stop - start for _, start, stop in missing), "passages", "encode"
        ) as progress:
            while pending:
                [result], _ = ray.wait(list(pending))
                shard, start, stop = pending.pop(result)
                try:
                    ray.get(result)
                except ray.exceptions.RayError as error:
                    if isinstance(cause := getattr(error, "cause", None), RagError):
                        raise cause from None
                    raise ResourceError(
                        f"shard {shard} could not be encoded in {_ATTEMPTS + 1} attempts ({error})",
                        hint="look at the nodes' memory; the same command goes on behind finished shards",
                    ) from error
                progress.update(stop - start)
    finally:
        for result in pending:
            ray.cancel(result, force=True)
    clean_directory(place)  # of nodes that were killed
    return EmbeddingShards.open(place)


def _encode_shard(
    place: Path,
    passages: Path,
    precision: str,
    identity: EncoderIdentity,
    shard: int,
    start: int,
    stop: int,
) -> None:
    """Runs on a node: encode rows start … stop - 1 and write them."""
    encoder, store = _opened(passages, precision, identity)
    store_shard(place, shard, embeddings.encode_rows(store, encoder, start, stop))


@lru_cache(maxsize=1)  # a process of the cluster runs task after task of one job
def _opened(
    passages: Path, precision: str, identity: EncoderIdentity
) -> tuple[PassageEncoder, PassageStore]:
    os.environ["OMP_NUM_THREADS"] = "1"  # a task has one CPU
    from retrievers.encoders.open import load_like

    encoder = load_like(identity, precision=precision)
    if differences := identity.differences(encoder.identity):
        raise MismatchedArtifactError(
            f"{os.uname().nodename} loads another encoder under {identity.name!r} ({'; '.join(differences)})",
            hint="keep the encoder on a disk that all nodes share",
        )
    if torch := sys.modules.get("torch"):  # a static encoder needs none
        torch.set_num_threads(1)
    return encoder, PassageStore(passages)
