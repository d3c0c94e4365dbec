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
    from readers.protocols import Reader
    from retrievers.protocols import Retriever

Precision = Literal["auto", "fp32", "bf16"]
_OWN = "its own question encoder"


class OpenSettings(BaseModel):
    """What opens a pipeline, declared once for `Pipeline.open`, the commands and the server.

    `retriever`, `index_encoder` and `reader` also take objects: a `retrievers.protocols.Retriever`,
    a `TextEncoder` with an identity and a `readers.protocols.Reader`. The encoder must have the
    weights that the index names.

    Attributes:
        retriever: auto, dense, colbert, bm25, hybrid or multihop; options follow a colon, as in
            multihop:beam=10.
        fusion: how hybrid retrieval fuses its lists: "zscore:DENSE,BM25", "std:…", "minmax:…",
            "raw:…", "rrf60:…".
        rerank: what re-ranks the first hits: "reader", or a ColBERT or cross-encoder folder;
            FOLDER,depth=100,fusion=std:1,0.5.
        index_encoder: folder or hub name of the index's encoder, if it has moved.
        reader: folder or hub name of a reader; the one in the package by default.
        effort: how much an extractive reader reads: full, normal.
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
    effort: Literal["full", "normal"] | None = None
    precision: Precision = "auto"

    @field_validator("retriever", "fusion", "rerank", mode="before")
    @classmethod
    def _check_spec(cls, value: Any, info: Any) -> Any:
        from retrievers.hybrid import Fusion
        from retrievers.open import parse_kind
        from retrievers.protocols import Retriever
        from retrievers.rerank import parse_rerank

        if info.field_name == "fusion":
            return None if value is None else str(Fusion.parse(str(value)))
        if info.field_name == "rerank" and isinstance(value, str):
            parse_rerank(value)
        elif info.field_name == "retriever" and isinstance(value, str):
            parse_kind(value)
        elif info.field_name == "retriever" and not isinstance(value, Retriever):
            what = f"retriever is {value!r:.40}, expected a name or a Retriever"
            hint = "give a name such as hybrid, or a subclass of retrievers.protocols.Retriever"
            raise ConfigError(what, hint=hint)
        return value


def open_models(
    index: Index, settings: OpenSettings, *, reads: bool
) -> tuple[Retriever, Reader | None]:
    """Open retriever and reader; the reader is None if none is wanted.

    Raises:
        ArtifactError: the index belongs to another encoder, or there is no such model.
        ConfigError: a setting does not fit the index.
    """
    from readers.manifest import READER_FILE, read_reader_file
    from retrievers.hybrid import Fusion
    from retrievers.open import named_kind, open_retriever

    reader, retriever, precision = settings.reader, settings.retriever, settings.precision
    fusion = None if settings.fusion is None else Fusion.parse(settings.fusion)
    has_file = isinstance(reader, str | Path) and reader and (Path(reader) / READER_FILE).exists()
    trained_with = (read_reader_file(Path(reader)).get("retriever") if has_file else None) or {}
    bound = (
        trained_with if trained_with and "kind" not in trained_with else None
    )  # its question encoder's
    if reader and bound is None and not reads:
        raise ConfigError(
            f"{reader} is to search and not to read, but there is no question encoder in it",
            hint="leave the reader out, or give the folder that `rag train rag` or `emdr2` wrote",
        )
    if retriever not in ("auto", "dense"):
        bound = None
    extra = [name for name in ("index_encoder", "fusion") if getattr(settings, name) is not None]
    if extra and (bound or not isinstance(retriever, str)):
        owner = (
            f"{reader} brings its own question encoder" if bound else "the retriever is an object"
        )
        raise ConfigError(
            f"{owner}: {extra[0]} cannot be set", hint="leave it out, or name the retriever"
        )
    if not isinstance(retriever, str):
        searcher: Retriever = retriever
    elif bound is None:
        searcher = open_retriever(
            index, retriever, encoder=settings.index_encoder, precision=precision, fusion=fusion
        )
    else:
        from retrievers.bound import open_bound

        searcher = open_bound(index, Path(str(reader)), bound, precision=precision)
    opened = resolve_reader(reader if reads else False, precision, settings.effort)
    if settings.rerank is not None:
        from retrievers.rerank import reranked

        judge = partial(_relevance_of, opened or reader or None, precision)
        searcher = reranked(
            searcher, index.passages, settings.rerank, precision=precision, reader=judge
        )
    counts_scores = opened is not None and opened.counts_scores
    if trained_with and isinstance(retriever, str) and counts_scores:
        searched = _OWN if bound else named_kind(retriever, index)
        _check_scores(str(reader), trained_with, searched, index)
    return searcher, opened


def _check_scores(
    reader: str, trained_with: Mapping[str, Any], searched: str, index: Index
) -> None:
    """Warn where a reader that counts scores in gets those of another kind of search or another
    encoder.
    """
    from indexers.protocols import EncoderIdentity

    trained, stored = trained_with.get("kind", _OWN), index.encoder_identity
    if trained.partition(":")[0] == searched.partition(":")[0]:
        if "encoder" not in trained_with or stored is None:
            return
        encoder = EncoderIdentity.from_json(trained_with["encoder"])
        if not (differences := stored.differences(encoder)):
            return
        trained, searched = (
            f"the encoder {encoder.name}",
            f"{index.directory} ({'; '.join(differences)})",
        )
    warning = "%s was trained with the scores of %s; those of %s are not comparable, so expect worse answers"
    get_logger(__name__).warning(warning, reader, trained, searched)


def _relevance_of(reader: Any, precision: str) -> ReaderRelevance:
    """An extractive reader as a scorer of passages."""
    from readers.extractive.likelihood import ReaderRelevance
    from readers.extractive.reader import ExtractiveReader

    opened = resolve_reader(reader, precision)
    if not isinstance(opened, ExtractiveReader):
        what = f"the reader is a {type(opened).__name__}, which cannot re-rank passages"
        raise ConfigError(what, hint="answer with an extractive one, or give a re-ranker's folder")
    return ReaderRelevance(opened)


def resolve_reader(
    reader: Any, precision: str = "auto", effort: str | None = None
) -> Reader | None:
    """The reader that a setting names, or that it is; None for False."""
    from readers.open import open_reader
    from readers.protocols import Reader

    if reader is False:
        return None
    if isinstance(reader, Reader):
        return reader
    if not isinstance(reader, str | Path | None):
        what = f"{type(reader).__name__} is no reader: it is no `readers.protocols.Reader`"
        raise ConfigError(what, hint="see `rag docs extending`")
    settings = {"effort": effort} if effort else {}  # which only extractive readers know
    return open_reader(reader, precision=precision, **settings)
