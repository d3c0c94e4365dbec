"""What opens a pipeline: settings, quick to import for a command's help, and the models that they
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from rag.core.errors import ConfigError
from rag.core.log import get_logger

if TYPE_CHECKING:
    from indexers.index import Index
    from readers.extractive.likelihood import ReaderRelevance
    from readers.open import ReaderName
    from readers.protocols import Reader, Verifier
    from retrievers.protocols import Retriever

    ReaderLike = ReaderName | Reader | Literal[False]
    VerifierLike = Verifier | str | Path | None

Precision = Literal["auto", "fp32", "bf16"]
_OWN_ENCODER = "its own question encoder"


class OpenSettings(BaseModel):
    """What opens a pipeline, declared once for `Pipeline.open`, the commands and the server.

    `retriever`, `index_encoder`, `reader` and `verifier` also take objects: a
    `retrievers.protocols.Retriever`, a `TextEncoder` with an identity, a `readers.protocols.Reader`
    and a `Verifier`. The encoder must have the weights that the index names.

    Attributes:
        retriever: auto, dense, colbert, bm25, hybrid or multihop; options follow a colon, as in
            multihop:beam=10. In Python also `rag.MultiHop`.
        fusion: how hybrid retrieval fuses its lists: "zscore:DENSE,BM25", "std:…", "minmax:…",
            "raw:…", "rrf60:…". In Python also `rag.Fusion`.
        rerank: what re-ranks the first hits: "reader", or a ColBERT or cross-encoder folder;
            FOLDER,depth=100,fusion=std:1,0.5. In Python also `rag.Rerank`.
        index_encoder: folder or hub name of the index's encoder, if it has moved.
        reader: folder or hub name of a reader; the one in the package by default. Settings of a
            language model follow a #, as in FOLDER#passages=5. In Python also `rag.LanguageModel`
            and `rag.ServedModel`.
        verifier: folder of a verifier of claims; the one in the package by default.
        effort: how much an extractive reader reads: full, normal; by default what its folder says,
            and that of the one in the package says normal.
        precision: number format in which the models compute.

    Raises:
        ConfigError: there is no such retriever, fusion or re-ranker.

    Example:
        >>> OpenSettings(retriever="multihop:beam=10", fusion="minmax:0.7,0.3").reader is None
        True
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    retriever: Any = "auto"
    fusion: str | None = None
    rerank: str | None = None
    index_encoder: Any = None
    reader: Any = None
    verifier: Any = None
    effort: Literal["full", "normal"] | None = None
    precision: Precision = "auto"

    @field_validator("retriever", mode="before")
    @classmethod
    def _check_retriever(cls, value: object) -> object:
        from retrievers.multihop import MultiHop
        from retrievers.open import parse_kind
        from retrievers.protocols import Retriever

        if isinstance(value, Retriever):
            return value
        if not isinstance(value, str | MultiHop):
            raise ConfigError(
                f"retriever is {value!r:.40}, expected a name, a MultiHop or a Retriever",
                hint="give a name such as hybrid, or a subclass of retrievers.protocols.Retriever",
            )
        parse_kind(str(value))
        return str(value)

    @field_validator("fusion", mode="before")
    @classmethod
    def _check_fusion(cls, value: object) -> str | None:
        from retrievers.hybrid import Fusion

        return None if value is None else str(Fusion.parse(str(value)))

    @field_validator("rerank", mode="before")
    @classmethod
    def _check_rerank(cls, value: object) -> str | None:
        from retrievers.rerank import Rerank

        if value is None:
            return None
        Rerank.parse(str(value))
        return str(value)


def open_models(
    index: Index, settings: OpenSettings, *, reads: bool
) -> tuple[Retriever, Reader | None]:
    """Open retriever and reader; the reader is None if none is wanted.

    Raises:
        ArtifactError: the index belongs to another encoder, or there is no such model.
        ConfigError: a setting does not fit the index.
    """
    trained_with = _trained_with(settings.reader)
    # The folder of a reader that RAG or EMDR² trained holds a question encoder, which the entry
    # describes; that of another reader describes the retriever whose passages it was trained on,
    # by its kind.
    has_encoder = bool(trained_with) and "kind" not in trained_with
    if settings.reader and not has_encoder and not reads:
        raise ConfigError(
            f"{settings.reader} is to search and not to read, but there is no question encoder in it",
            hint="leave the reader out, or give the folder that `rag train rag` or `emdr2` wrote",
        )
    is_bound = has_encoder and settings.retriever in ("auto", "dense")
    retriever = _open_retriever(index, settings, trained_with if is_bound else None)
    reader = resolve_reader(
        settings.reader if reads else False, settings.precision, settings.effort
    )
    if reader is not None and reader.language != index.language:
        reader = reader.for_language(index.language)
    if settings.rerank is not None:
        from retrievers.rerank import Rerank, reranked

        judge = partial(relevance_of, reader or settings.reader or None, settings.precision)
        rerank = Rerank.parse(settings.rerank)
        retriever = reranked(
            retriever, index.passages, rerank, precision=settings.precision, reader=judge
        )
    counts_scores = reader is not None and reader.counts_scores
    if trained_with and counts_scores and isinstance(settings.retriever, str):
        from retrievers.open import named_kind

        searched = _OWN_ENCODER if is_bound else named_kind(settings.retriever, index)
        _check_scores(str(settings.reader), trained_with, searched, index)
    return retriever, reader


def _trained_with(reader: object) -> Mapping[str, Any]:
    """What a reader's folder says of the retriever that it was trained with; empty if nothing."""
    from readers.manifest import READER_FILE, read_reader_file

    if not isinstance(reader, str | Path) or not reader:
        return {}
    folder = Path(reader)
    if not (folder / READER_FILE).exists():
        return {}
    retriever = read_reader_file(folder).get("retriever")
    return retriever if isinstance(retriever, Mapping) else {}


def _open_retriever(
    index: Index, settings: OpenSettings, bound: Mapping[str, Any] | None
) -> Retriever:
    """The retriever of the settings.

    Args:
        bound: description of the question encoder in the reader's folder, if that encoder is to
            search.
    """
    reason = ""
    if bound is not None:
        reason = f"{settings.reader} brings its own question encoder"
    elif not isinstance(settings.retriever, str):
        reason = "the retriever is an object"
    for name in ("index_encoder", "fusion"):
        if reason and getattr(settings, name) is not None:
            raise ConfigError(
                f"{reason}: {name} cannot be set", hint="leave it out, or name the retriever"
            )
    if bound is not None:
        from retrievers.bound import open_bound

        return open_bound(index, Path(str(settings.reader)), bound, precision=settings.precision)
    if not isinstance(settings.retriever, str):
        return settings.retriever
    from retrievers.hybrid import Fusion
    from retrievers.open import open_retriever

    return open_retriever(
        index,
        settings.retriever,
        encoder=settings.index_encoder,
        precision=settings.precision,
        fusion=None if settings.fusion is None else Fusion.parse(settings.fusion),
    )


def _check_scores(
    reader: str, trained_with: Mapping[str, Any], searched: str, index: Index
) -> None:
    """Warn where a reader that counts scores in gets those of another kind of search or another
    encoder.
    """
    from indexers.protocols import EncoderIdentity

    trained = trained_with.get("kind", _OWN_ENCODER)
    if trained.partition(":")[0] == searched.partition(":")[0]:
        stored = index.encoder_identity
        if "encoder" not in trained_with or stored is None:
            return
        encoder = EncoderIdentity.from_json(trained_with["encoder"])
        differences = stored.differences(encoder)
        if not differences:
            return
        trained = f"the encoder {encoder.name}"
        searched = f"{index.directory} ({'; '.join(differences)})"
    get_logger(__name__).warning(
        "%s was trained with the scores of %s; those of %s are not comparable, so expect worse "
        "answers",
        reader,
        trained,
        searched,
    )


def relevance_of(reader: ReaderLike, precision: str = "auto") -> ReaderRelevance:
    """An extractive reader as a scorer of passages."""
    from readers.extractive.likelihood import ReaderRelevance
    from readers.extractive.reader import ExtractiveReader

    opened = resolve_reader(reader, precision)
    if not isinstance(opened, ExtractiveReader):
        raise ConfigError(
            f"the reader is a {type(opened).__name__}, which cannot re-rank passages",
            hint="answer with an extractive one, or give a re-ranker's folder",
        )
    return ReaderRelevance(opened)


def resolve_reader(
    reader: ReaderLike, precision: str = "auto", effort: str | None = None
) -> Reader | None:
    """The reader that a setting names, or that it is; None for False."""
    from readers.open import open_reader
    from readers.protocols import Reader

    if reader is False:
        return None
    if isinstance(reader, Reader):
        return reader
    # Only extractive readers know the setting.
    settings = {"effort": effort} if effort else {}
    return open_reader(reader, precision=precision, **settings)


def resolve_verifier(verifier: VerifierLike) -> Verifier:
    """The verifier that a setting names, or that it is."""
    from readers.protocols import Verifier
    from readers.verifying.open import load_verifier

    if isinstance(verifier, Verifier):
        return verifier
    if not isinstance(verifier, str | Path | None):
        raise ConfigError(
            f"{type(verifier).__name__} is no verifier: it is no `readers.protocols.Verifier`",
            hint="see `rag docs extending`",
        )
    return load_verifier(verifier)
