"""Open a retriever over an index: the kinds of retrievers, the parts each needs, and their options."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from indexers.presets import INDEX_KINDS, Part
from rag.config import Config, load_config, parse_overrides
from rag.core.errors import ConfigError, did_you_mean
from rag.core.log import get_logger
from retrievers.dense import DenseRetriever
from retrievers.fusion import Fusion
from retrievers.hybrid import DEFAULT_DEPTH, HybridRetriever, default_fusion
from retrievers.kinds import KIND_NAMES
from retrievers.late_interaction import LateInteractionRetriever, TokenSearchOptions
from retrievers.multihop import HopOptions, MultiHopRetriever
from retrievers.protocols import Retriever, TextEncoder
from retrievers.sparse import SparseRetriever

if TYPE_CHECKING:
    from indexers.index import Index
    from retrievers.encoders.bi_encoder import BiEncoder
    from retrievers.encoders.static import StaticEncoder


log = get_logger(__name__)


class NoOptions(Config):
    """Options of a kind of retriever that has none."""


class HybridOptions(Config):
    """Options of hybrid retrieval.

    Attributes:
        depth: hits taken from each list before fusion.
        matching: with a static encoder and the usual fusion, add scores of how the words of the first 60
            passages match the question's (`TokenMatch`); by default with the encoder of the package, for
            which the weights of these scores were fitted.
    """

    depth: int = Field(default=DEFAULT_DEPTH, ge=1)
    matching: bool | None = None


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds a retriever of any kind from the same arguments.

    Attributes:
        index: the open index.
        options: validated options of its kind.
        encoder, precision, device, fusion: see `open_retriever`.
    """

    index: Index
    options: Any
    encoder: str | Path | BiEncoder | StaticEncoder | None
    precision: str
    device: str
    fusion: Fusion | None

    def dense(self) -> DenseRetriever:
        """Dense retrieval with the index's encoder."""
        loaded = open_encoder(self.index, encoder=self.encoder, precision=self.precision, device=self.device)
        return DenseRetriever(self.index.require_dense().vectors, self.index.passages, loaded)

    def colbert(self) -> LateInteractionRetriever:
        """Late interaction with the index's encoder."""
        assert self.index.tokens is not None
        loaded = open_encoder(self.index, encoder=self.encoder, precision=self.precision, device=self.device)
        options = self.options if isinstance(self.options, TokenSearchOptions) else None
        return LateInteractionRetriever(
            self.index.tokens, self.index.passages, cast("BiEncoder", loaded), options
        )

    def bm25(self) -> SparseRetriever:
        """BM25."""
        assert self.index.lucene is not None
        return SparseRetriever(self.index.lucene, self.index.passages)

    def hybrid(self) -> HybridRetriever:
        """Dense retrieval (or late interaction) and BM25, fused."""
        depth = getattr(self.options, "depth", DEFAULT_DEPTH)
        vectors = self.dense() if self.index.tokens is None else self.colbert()
        from retrievers.encoders.static import STATIC_SHA256, StaticEncoder

        is_static = isinstance(vectors.encoder, StaticEncoder)
        usual = default_fusion(2, is_static=is_static)
        matching = None
        wanted = getattr(self.options, "matching", None)
        if wanted is None:
            wanted = is_static and vectors.encoder.identity.weights_sha256 == STATIC_SHA256
        if wanted and is_static and self.fusion in (None, usual):
            from retrievers.encoders.matching import TokenMatch

            matching = TokenMatch(cast("StaticEncoder", vectors.encoder))
        elif wanted and is_static:
            log.info("with the fusion %s, words of the best hits are not matched", self.fusion)
        return HybridRetriever(
            [vectors, self.bm25()], fusion=self.fusion or usual, depth=depth, passages=self.index.passages,
            matching=matching,
        )  # fmt: skip

    def multihop(self) -> MultiHopRetriever:
        """Multi-hop retrieval, with a first hop of any kind."""
        options: HopOptions = self.options
        if options.first != "dense" and "bm25" not in self.index.parts:
            raise ConfigError(
                f"first={options.first} needs an index with BM25",
                hint="build it with `rag index … --retriever hybrid`, or leave first at dense",
            )
        if self.fusion is not None and options.first != "hybrid":
            raise ConfigError(
                f"a fusion ({self.fusion}) is given, but first={options.first} has one list only"
            )
        dense = self.dense()
        loaded = replace(self, encoder=cast("BiEncoder", dense.encoder))
        first = {"dense": lambda: None, "bm25": loaded.bm25, "hybrid": loaded.hybrid}[options.first]()
        return MultiHopRetriever(
            dense, self.index.passages, first=first, hops=options.hops, beam=options.beam
        )


@dataclass(frozen=True, slots=True)
class RetrieverKind:
    """One kind of retriever.

    Attributes:
        needs: parts that the index must have.
        make: function that opens the retriever.
        options: configuration class of its options (`hybrid:depth=500`).
        fuses: whether it fuses lists, so that a fusion may be given.
    """

    needs: tuple[Part, ...]
    make: Callable[[_Builder], Retriever]
    options: type[Config] = NoOptions
    fuses: bool = False


KINDS: dict[str, RetrieverKind] = {
    "dense": RetrieverKind(("dense",), _Builder.dense),
    "colbert": RetrieverKind(("tokens",), _Builder.colbert, TokenSearchOptions),
    "bm25": RetrieverKind(("bm25",), _Builder.bm25),
    "hybrid": RetrieverKind(("dense", "bm25"), _Builder.hybrid, HybridOptions, fuses=True),
    "multihop": RetrieverKind(("dense",), _Builder.multihop, HopOptions, fuses=True),
}
_AUTO = ("hybrid", "dense", "colbert", "bm25")  # the first kind for which the index has all parts


def parse_kind(text: str) -> tuple[str, Config]:
    """Parse a kind of retriever with its options, written `kind` or `kind:key=value,key=value`.

    Raises:
        ConfigError: there is no such kind, or it has no such option.

    Example:
        >>> kind, options = parse_kind("hybrid:depth=500")
        >>> kind, options.depth
        ('hybrid', 500)
    """
    name, _, given = text.partition(":")
    if name != "auto" and name not in KINDS:
        raise ConfigError(
            f"retriever is {name!r}, expected one of {', '.join(KIND_NAMES)}",
            hint=did_you_mean(name, KINDS, ""),
        )
    options = KINDS[name].options if name in KINDS else NoOptions
    values = [part.strip() for part in given.split(",") if part.strip()]
    try:
        return name, load_config(options, overrides=parse_overrides(values))
    except ConfigError as error:
        raise ConfigError(f"retriever {text!r}: {error}") from error


def named_kind(text: str, index: Index) -> str:
    """The kind of retriever and its options; "auto" is the first of `_AUTO` for which the index has all
    parts.

    Raises:
        ConfigError: there is no such kind, or it has no such option.
    """
    name, _ = parse_kind(text)
    return text if name != "auto" else next(kind for kind in _AUTO if not _missing(kind, index))


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
        kind: one of `KINDS`, perhaps with options (`parse_kind`), or "auto": hybrid if the index has both
            parts, else the only one.
        encoder: the index's encoder, if it has moved since: a folder, a name, or a loaded encoder.
        precision: "auto", "fp32" or "bf16".
        device: "auto", "cpu" or "cuda".
        fusion: method of fusing several lists; `default_fusion` for the index's encoder if None.

    Raises:
        ConfigError: unknown kind or option, the index was built without what this kind needs, or a fusion is
            given for a single list.
        MismatchedArtifactError: the encoder is not the one the index was built with.
    """
    name, options = parse_kind(named_kind(kind, index))
    chosen = KINDS[name]
    if missing := _missing(name, index):
        enough = next((kind for kind, parts in INDEX_KINDS.items() if set(chosen.needs) <= set(parts)), "")
        raise ConfigError(
            f"{name} retrieval needs a {' and a '.join(missing)} index; this one has "
            f"{' and '.join(index.parts) or 'neither'}",
            hint=f"build it with `rag index … {f'--retriever {enough}' if enough else '--index-type plaid'}`",
        )
    if fusion is not None and not chosen.fuses:
        raise ConfigError(
            f"a fusion ({fusion}) is given, but {name} retrieval has nothing to fuse",
            hint="leave it out, or use hybrid retrieval",
        )
    return chosen.make(_Builder(index, options, encoder, precision, device, fusion))


def over_index(retriever: Retriever, index: Index) -> Retriever:
    """A retriever with the loaded models of this one, over another version of its index.

    Raises:
        ConfigError: it reads token vectors, which belong to one version.
    """
    if isinstance(retriever, LateInteractionRetriever) or getattr(
        getattr(retriever, "scorer", None), "stored", None
    ):
        raise ConfigError("token vectors belong to one version of an index", hint="reload it")
    made = copy.copy(retriever)
    renewed: dict[str, Any] = {"passages": index.passages, "vectors": index.dense, "terms": index.lucene}
    for name, value in vars(retriever).items():
        if name in renewed:
            setattr(made, name, renewed[name])
        elif name in ("first", "dense") and value is not None:
            setattr(made, name, over_index(value, index))
        elif name == "members":
            made.members = tuple(over_index(member, index) for member in value)  # type: ignore[attr-defined]
    return made


def encoder_of(retriever: Retriever) -> TextEncoder | None:
    """The encoder that a retriever, or the first of its parts that has one, searches with."""
    if (encoder := getattr(retriever, "encoder", None)) is not None:
        return cast("TextEncoder", encoder)
    parts = (getattr(retriever, name, None) for name in ("dense", "first"))
    found = (encoder_of(part) for part in (*parts, *getattr(retriever, "members", ())) if part is not None)
    return next((encoder for encoder in found if encoder is not None), None)


def _missing(kind: str, index: Index) -> list[Part]:
    """Parts that the index lacks for a kind; a fusion with BM25 takes token vectors for dense ones."""
    instead = "tokens" if kind == "hybrid" and "tokens" in index.parts else "dense"
    return [part for part in KINDS[kind].needs if (instead if part == "dense" else part) not in index.parts]


def open_encoder(
    index: Index,
    *,
    encoder: str | Path | BiEncoder | StaticEncoder | None = None,
    precision: str = "auto",
    device: str = "auto",
) -> BiEncoder | StaticEncoder:
    """The encoder that an index was built with, with its pooling, prefixes and lengths.

    Raises:
        MismatchedArtifactError: the loaded encoder is not the one that the index was built with.
        ArtifactError: there is no encoder under the name that the index states.
    """
    from retrievers.encoders.open import load_like

    identity = index.encoder_identity
    if identity is None:
        raise ConfigError(
            "this index has no dense part", hint="build it with `rag index … --retriever dense`"
        )
    loaded = load_like(identity, encoder, precision=precision, device=device)
    index.check_encoder(loaded.identity)
    return loaded
