"""Encode a corpus on a Ray cluster: a task per shard, which writes the shard's file on the shared
disk.

The shards are those of one process, with the same bytes on processors of the same kind, so that a
build begun on a cluster may be finished on one machine, on another cluster, or the other way round.
A task whose node dies is run again by Ray on another node.
"""

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from indexers import embeddings
from indexers.embeddings import EmbeddingShards, Shard, ShardLayout, missing_shards, store_shard
from indexers.passages import HASHES_NAME, PassageStore
from indexers.protocols import EncoderIdentity, EncodesCorpus, PassageEncoder
from indexers.settings import SHARD_ROWS, VectorDtype
from rag.core.errors import MismatchedArtifactError, RagError, ResourceError
from rag.core.files import TEMPORARY_MARK, clean_directory
from rag.core.log import Progress
from rag.scale.cluster import check_nodes, connected

# How often a shard whose process dies is tried again.
_ATTEMPTS = 8


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
    ray: ModuleType,
    folder: Path,
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
    layout = ShardLayout(len(passages), encoder.identity.dim, dtype, shard_rows)
    missing = missing_shards(folder, layout)
    # The nodes show by it that they see the folder.
    mark = folder / f".shared{TEMPORARY_MARK}disk"
    mark.write_text(uuid.uuid4().hex)
    check_nodes(ray, [mark, passages.directory / HASHES_NAME])
    resources = ray.cluster_resources()
    task = ray.remote(_encode_shard).options(
        num_cpus=1, num_gpus=1 if resources.get("GPU") else 0, max_retries=_ATTEMPTS
    )
    precision = getattr(encoder, "precision", "auto")
    arguments = (folder.absolute(), layout, passages.directory.absolute(), precision)
    pending = {task.remote(*arguments, encoder.identity, shard): shard for shard in missing}
    try:
        rows = sum(shard.stop - shard.start for shard in missing)
        with Progress(rows, "passages", "encode") as progress:
            while pending:
                [result], _ = ray.wait(list(pending))
                shard = pending.pop(result)
                _check_result(ray, result, shard)
                progress.update(shard.stop - shard.start)
    finally:
        for result in pending:
            ray.cancel(result, force=True)
    # Nodes that were killed left files there.
    clean_directory(folder)
    return EmbeddingShards.open(folder, layout)


def _check_result(ray: Any, result: Any, shard: Shard) -> None:
    """Raise the error of a shard's task, if it has one."""
    try:
        ray.get(result)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, RagError):
            raise cause from None
        raise ResourceError(
            f"shard {shard.number} could not be encoded in {_ATTEMPTS + 1} attempts ({error})",
            hint="look at the nodes' memory; the same command goes on behind finished shards",
        ) from error


def _encode_shard(
    folder: Path,
    layout: ShardLayout,
    passages: Path,
    precision: str,
    identity: EncoderIdentity,
    shard: Shard,
) -> None:
    """Runs on a node: encode the rows of a shard and write them."""
    encoder, store = _open(passages, precision, identity)
    store_shard(folder, layout, shard, embeddings.encode_rows(store, encoder, shard))


# A process of the cluster runs task after task of one job.
@lru_cache(maxsize=1)
def _open(
    passages: Path, precision: str, identity: EncoderIdentity
) -> tuple[PassageEncoder, PassageStore]:
    # A task has one CPU.
    os.environ["OMP_NUM_THREADS"] = "1"
    from retrievers.encoders.open import load_like

    encoder = load_like(identity, precision=precision)
    differences = identity.differences(encoder.identity)
    if differences:
        raise MismatchedArtifactError(
            f"{os.uname().nodename} loads another encoder under {identity.name!r} "
            f"({'; '.join(differences)})",
            hint="keep the encoder on a disk that all nodes share",
        )
    # A static encoder needs none.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    return encoder, PassageStore(passages)
