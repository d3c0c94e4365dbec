"""From an open index to a retriever."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rag.core.errors import ConfigError
from retrievers.dense import DenseRetriever
from retrievers.fusion import Fusion
from retrievers.hybrid import DEFAULT_DEPTH, HybridRetriever
from retrievers.protocols import Retriever
from retrievers.sparse import SparseRetriever

if TYPE_CHECKING:
    from indexers.index import Index
    from retrievers.encoders.bi_encoder import BiEncoder

__all__ = ["KINDS", "open_encoder", "open_retriever"]

KINDS = ("auto", "dense", "bm25", "hybrid")


def open_retriever(
    index: Index,
    kind: str = "auto",
    *,
    encoder: str | Path | BiEncoder | None = None,
    precision: str = "auto",
    device: str = "auto",
    fusion: Fusion | None = None,
    depth: int = DEFAULT_DEPTH,
) -> Retriever:
    """The retriever of an index.

    Args:
        index: an open index.
        kind: "dense", "bm25", "hybrid", or "auto": hybrid if the index has both, else what it has.
        encoder: the index's encoder, if it is not where the index says: a folder, a name, or a loaded one.
        precision: "auto", "fp32" or "bf16".
        device: "auto", "cpu" or "cuda".
        fusion: how hybrid lists are put together; None is `default_fusion`.
        depth: hits taken from each list before fusion.

    Raises:
        ConfigError: unknown kind, the index was built without what this kind needs, or a fusion is given for
            a single list.
        MismatchedArtifactError: the encoder is not the one the index was built with.
    """
    if kind not in KINDS:
        raise ConfigError(f"retriever is {kind!r}, expected one of {', '.join(KINDS)}")
    has = {"dense": index.has_dense, "bm25": index.has_bm25}
    if kind == "auto":
        kind = "hybrid" if all(has.values()) else "dense" if has["dense"] else "bm25"
    missing = [part for part in (("dense", "bm25") if kind == "hybrid" else (kind,)) if not has[part]]
    if missing:
        raise ConfigError(
            f"{kind} retrieval needs a {' and a '.join(missing)} index; this one has "
            f"{' and '.join(part for part, there in has.items() if there) or 'neither'}",
            hint=f"build it with `rag index … --retriever {kind}`",
        )
    if fusion is not None and kind != "hybrid":
        raise ConfigError(
            f"a fusion ({fusion}) is given, but {kind} retrieval has nothing to fuse",
            hint="leave it out, or use hybrid retrieval",
        )
    members: list[Retriever] = []
    if kind in ("dense", "hybrid"):
        assert index.dense is not None
        loaded = open_encoder(index, encoder=encoder, precision=precision, device=device)
        members.append(DenseRetriever(index.dense, index.passages, loaded))
    if kind in ("bm25", "hybrid"):
        assert index.lucene is not None
        members.append(SparseRetriever(index.lucene, index.passages))
    if kind == "hybrid":
        return HybridRetriever(members, fusion=fusion, depth=depth)
    return members[0]


def open_encoder(
    index: Index,
    *,
    encoder: str | Path | BiEncoder | None = None,
    precision: str = "auto",
    device: str = "auto",
) -> BiEncoder:
    """The bi-encoder an index was built with, with the same pooling, prefixes and lengths.

    Raises:
        MismatchedArtifactError: what is loaded is not what the index was built with.
        ArtifactError: it cannot be found under the name the index knows.
    """
    from retrievers.encoders.bi_encoder import BiEncoder

    identity = index.encoder_identity
    if identity is None:
        raise ConfigError(
            "this index has no dense part", hint="build it with `rag index … --retriever dense`"
        )
    if isinstance(encoder, BiEncoder):
        loaded = encoder
    else:
        loaded = BiEncoder.load_like(identity, encoder, precision=precision, device=device)
    index.check_encoder(loaded.identity)
    return loaded
