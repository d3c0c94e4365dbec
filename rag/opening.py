"""Open the models of a pipeline by name or folder: what `Pipeline.open` does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexers.index import Index
from indexers.protocols import EncoderIdentity
from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.open_settings import OpenSettings
from readers.answers import counts_scores
from readers.protocols import Reader
from retrievers.fusion import Fusion
from retrievers.protocols import PathRetriever, Retriever

if TYPE_CHECKING:
    from readers.extractive.likelihood import ReaderRelevance

_OWN = "its own question encoder"


def open_models(index: Index, settings: OpenSettings, *, reads: bool) -> tuple[Retriever, Reader | None]:
    """Open retriever and reader; the reader is None if none is wanted.

    Raises:
        ArtifactError: the index belongs to another encoder, or there is no such model.
        ConfigError: a setting does not fit the index.
    """
    from readers.manifest import READER_FILE, read_reader_file
    from retrievers.open import named_kind, open_retriever

    reader, retriever, precision = settings.reader, settings.retriever, settings.precision
    fusion = None if settings.fusion is None else Fusion.parse(settings.fusion)
    has_file = isinstance(reader, str | Path) and reader and (Path(reader) / READER_FILE).exists()
    trained_with = (read_reader_file(Path(reader)).get("retriever") if has_file else None) or {}
    bound = trained_with if trained_with and "kind" not in trained_with else None  # its question encoder's
    if reader and bound is None and not reads:
        raise ConfigError(
            f"{reader} is to search and not to read, but there is no question encoder in it",
            hint="leave the reader out, or give the folder that `rag train rag` or `emdr2` wrote",
        )
    if retriever not in ("auto", "dense"):
        bound = None
    extra = [name for name in ("index_encoder", "fusion") if getattr(settings, name) is not None]
    if extra and (bound or not isinstance(retriever, str)):
        owner = f"{reader} brings its own question encoder" if bound else "the retriever is an object"
        raise ConfigError(f"{owner}: {extra[0]} cannot be set", hint="leave it out, or name the retriever")
    if not isinstance(retriever, str):
        searcher: Retriever = retriever
    elif bound is None:
        searcher = open_retriever(
            index, retriever, encoder=settings.index_encoder, precision=precision, fusion=fusion
        )
    else:
        from retrievers.bound import open_bound

        searcher = open_bound(index, Path(str(reader)), bound, precision=precision)
    opened = _open_reader(reader if reads else False, precision, settings.effort)
    if settings.rerank is not None:
        from retrievers.rerank import reranked

        judge = partial(_relevance_of, opened or reader or None, precision)
        searcher = reranked(searcher, index.passages, settings.rerank, precision=precision, reader=judge)
    if trained_with and isinstance(retriever, str) and counts_scores(opened):
        searched = _OWN if bound else named_kind(retriever, index)
        _check_scores(str(reader), trained_with, searched, index)
    return searcher, opened


def describe(index: Index, retriever: Retriever, reader: Reader | None) -> dict[str, Any]:
    """Description of retriever, encoder and reader with their weight hashes; see `Pipeline.identity`."""
    from retrievers.rerank import RerankingRetriever

    judging = retriever if isinstance(retriever, RerankingRetriever) else None
    first: Any = retriever if judging is None else judging.first
    fusion, effort = getattr(first, "fusion", None), "full"
    if not isinstance(retriever, PathRetriever):  # of paths everything is read
        effort = str(getattr(getattr(reader, "settings", None), "effort", "full"))
    optional = {
        "fusion": str(fusion) if fusion else None,
        "matching": bool(getattr(first, "matching", None)),
        "rerank": None if judging is None else judging.identity,
        "question_encoder": getattr(getattr(retriever, "encoder", None), "questions_sha256", None),
        "effort": effort if effort != "full" else None,
    }
    return {
        "retriever": type(first).__name__,
        "encoder": index.manifest.get("encoder"),
        "reader": None if reader is None else getattr(reader, "name", type(reader).__name__),
        **{name: value for name, value in optional.items() if value},
    }


def _check_scores(reader: str, trained_with: Mapping[str, Any], searched: str, index: Index) -> None:
    """Warn where a reader that counts scores in gets those of another kind of search or another encoder."""
    trained, stored = trained_with.get("kind", _OWN), index.encoder_identity
    if trained.partition(":")[0] == searched.partition(":")[0]:
        if "encoder" not in trained_with or stored is None:
            return
        encoder = EncoderIdentity.from_json(trained_with["encoder"])
        if not (differences := stored.differences(encoder)):
            return
        trained, searched = f"the encoder {encoder.name}", f"{index.directory} ({'; '.join(differences)})"
    get_logger(__name__).warning(
        "%s was trained with the scores of %s; those of %s are not comparable, so expect worse answers",
        *(reader, trained, searched),
    )


def _relevance_of(reader: Any, precision: str) -> ReaderRelevance:
    """An extractive reader as a scorer of passages."""
    from readers.extractive.likelihood import ReaderRelevance
    from readers.extractive.reader import ExtractiveReader

    opened = _open_reader(reader, precision, None)
    if not isinstance(opened, ExtractiveReader):
        what = f"the reader is a {type(opened).__name__}, which cannot re-rank passages"
        raise ConfigError(what, hint="answer with an extractive one, or give a re-ranker's folder")
    return ReaderRelevance(opened)


def _open_reader(reader: Any, precision: str, effort: str | None) -> Reader | None:
    if reader is False:
        return None
    if isinstance(reader, Reader):
        return reader
    if not isinstance(reader, str | Path | None):
        raise ConfigError(
            f"{type(reader).__name__} is no reader: it has no method `read`", hint="see `rag docs extending`"
        )
    from readers.open import open_reader

    settings = {"precision": precision, **({"effort": effort} if effort else {})}
    return open_reader(reader, **settings)
