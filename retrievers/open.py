"""Open a retriever over an index: the kinds of retrievers, the parts each needs, and their
options.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from indexers.settings import INDEX_KINDS, Part
from rag.config import Config, load_config, parse_overrides
from rag.core.errors import ConfigError, did_you_mean
from rag.core.log import get_logger
from rag.runtime.model_files import PACKAGED, STATIC_ENCODER
from retrievers.first_stage import DenseRetriever, LateInteractionRetriever, SparseRetriever
from retrievers.hybrid import Fusion, HybridRetriever, default_fusion
from retrievers.multihop import MultiHop, MultiHopRetriever
from retrievers.protocols import Retriever, TextEncoder

if TYPE_CHECKING:
    from indexers.index import Index
    from retrievers.encoders.bi_encoder import BiEncoder

log = get_logger(__name__)


KINDS: dict[str, tuple[Part, ...]] = {
    "dense": ("dense",),
    "colbert": ("tokens",),
    "bm25": ("bm25",),
    "hybrid": ("dense", "bm25"),
    "multihop": ("dense",),
}
"""Kinds of retrievers, and the parts that the index must have for each."""
_AUTO = ("hybrid", "dense", "colbert", "bm25")  # the first kind for which the index has all parts


def parse_kind(text: str) -> str | MultiHop:
    """Parse a kind of retriever: a name, for multi-hop retrieval with `:key=value,key=value`.

    Example:
        >>> parse_kind("multihop:beam=10")
        MultiHop(hops=2, beam=10, first='dense')
        >>> parse_kind("bm25")
        'bm25'
    """
    name, _, options_text = text.partition(":")
    if name != "auto" and name not in KINDS:
        raise ConfigError(
            f"retriever is {name!r}, expected one of {', '.join(['auto', *KINDS])}",
            hint=did_you_mean(name, KINDS, ""),
        )
    values = [part.strip() for part in options_text.split(",") if part.strip()]
    options = MultiHop if name == "multihop" else Config
    try:
        parsed = load_config(options, overrides=parse_overrides(values))
    except ConfigError as error:
        raise ConfigError(f"retriever {text!r}: {error}") from error
    return parsed if isinstance(parsed, MultiHop) else name


def named_kind(text: str, index: Index) -> str:
    """The kind of retriever and its options; "auto" is the first of `_AUTO` for which the index has
    all parts. Raises what `parse_kind` does."""
    if parse_kind(text) != "auto":
        return text
    return next(kind for kind in _AUTO if not _missing(kind, index))


def open_retriever(
    index: Index,
    kind: str = "auto",
    *,
    encoder: str | Path | BiEncoder | None = None,
    precision: str = "auto",
    device: str = "auto",
    fusion: Fusion | None = None,
) -> Retriever:
    """Open a retriever over an index.

    Args:
        kind: one of `KINDS`, perhaps with options (`parse_kind`), or "auto", see `named_kind`.
        encoder: the index's encoder, if it has moved since: a folder, a name, or a loaded encoder.
        precision, device: see `BiEncoder.load`.
        fusion: method of fusing several lists; `default_fusion` for the index's encoder if None.
    """
    spec = parse_kind(named_kind(kind, index))
    name = "multihop" if isinstance(spec, MultiHop) else spec
    first_kind = spec.first if isinstance(spec, MultiHop) else spec
    _refuse_missing(name, index)
    _refuse_missing(first_kind, index)
    is_hybrid = first_kind == "hybrid"
    if fusion is not None and not is_hybrid:
        raise ConfigError(
            f"a fusion ({fusion}) is given, but {name} retrieval has nothing to fuse",
            hint="leave it out, or use hybrid retrieval",
        )
    if name == "bm25":
        return SparseRetriever.of(index)
    loaded = open_encoder(index, encoder=encoder, precision=precision, device=device)
    if name == "hybrid":
        return _hybrid(index, loaded, fusion)
    if not isinstance(spec, MultiHop):
        return _by_vectors(index, loaded)
    first = _hybrid(index, loaded, fusion) if is_hybrid else None
    dense = DenseRetriever(index.require_dense().vectors, index.passages, loaded)
    return MultiHopRetriever(dense, index.passages, first=first, hops=spec.hops, beam=spec.beam)


def _refuse_missing(kind: str, index: Index) -> None:
    """Refuse an index that lacks a part which a kind of retriever needs."""
    missing = _missing(kind, index)
    if not missing:
        return
    option = "--index-type plaid"
    for retriever, parts in INDEX_KINDS.items():
        if set(KINDS[kind]) <= set(parts):
            option = f"--retriever {retriever}"
            break
    raise ConfigError(
        f"{kind} retrieval needs a {' and a '.join(missing)} index; this one has "
        f"{' and '.join(index.parts) or 'neither'}",
        hint=f"build it with `rag index … {option}`",
    )


def _by_vectors(index: Index, encoder: TextEncoder) -> Retriever:
    """Search by the index's vectors, one per passage or one per token."""
    if index.tokens is not None:
        return LateInteractionRetriever(index.tokens, index.passages, cast("BiEncoder", encoder))
    return DenseRetriever(index.require_dense().vectors, index.passages, encoder)


def _hybrid(index: Index, encoder: TextEncoder, fusion: Fusion | None) -> HybridRetriever:
    """Vectors and BM25, fused; with the encoder of the package and the usual fusion, words of the
    best hits are matched too: the weights of these scores were fitted for it."""
    from retrievers.encoders.static import StaticEncoder

    usual = default_fusion(is_static=isinstance(encoder, StaticEncoder))
    matching = None
    packaged = PACKAGED[STATIC_ENCODER][1]
    if isinstance(encoder, StaticEncoder) and encoder.identity.weights_sha256 == packaged:
        from retrievers.encoders.matching import TokenMatch

        if fusion in (None, usual):
            matching = TokenMatch(encoder)
        else:
            log.info("with the fusion %s, words of the best hits are not matched", fusion)
    members = [_by_vectors(index, encoder), SparseRetriever.of(index)]
    return HybridRetriever(members, index.passages, fusion=fusion or usual, matching=matching)


def _missing(kind: str, index: Index) -> list[Part]:
    """Parts that the index lacks for a kind; a fusion with BM25 takes token vectors for dense
    ones.
    """
    present = set(index.parts)
    if kind == "hybrid" and "tokens" in present:
        present.add("dense")
    return [part for part in KINDS[kind] if part not in present]


def open_encoder(
    index: Index,
    *,
    encoder: str | Path | TextEncoder | None = None,
    precision: str = "auto",
    device: str = "auto",
) -> TextEncoder:
    """The encoder that an index was built with, with its pooling, prefixes and lengths."""
    from retrievers.encoders.open import load_like

    identity = index.encoder_identity
    if identity is None:
        raise ConfigError(
            "this index has no dense part", hint="build it with `rag index … --retriever dense`"
        )
    loaded = load_like(identity, encoder, precision=precision, device=device)
    index.check_encoder(loaded.identity)
    return loaded
