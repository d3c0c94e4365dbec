"""Open pipelines with models given by name or folder, and save them: `Pipeline.open` and `save`.

A saved pipeline is an index directory that also contains `pipeline.json`, the settings that were given, and
the models in `encoder/` and `reader/`, unless they come with the package or from the hub.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexers.build import INDEX_KIND
from indexers.index import ENCODER_DIR, Index
from indexers.protocols import EncoderIdentity
from rag.core.errors import ConfigError
from rag.core.files import TEMPORARY_MARK, atomic_write_json, check_target, read_json, replaced_folder
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME, read_manifest
from rag.open_settings import OpenSettings
from rag.runtime.model_files import TOWER_NAMES, TOWER_SEPARATOR, tower_folders
from readers.answers import counts_scores
from readers.protocols import Reader
from retrievers.fusion import Fusion
from retrievers.protocols import PathRetriever, Retriever

if TYPE_CHECKING:
    from readers.extractive.likelihood import ReaderRelevance

SETTINGS_FILE, READER_DIR = "pipeline.json", "reader"  # in the directory of a saved pipeline
_OWN = "its own question encoder"


def with_saved(settings: OpenSettings, directory: Path) -> OpenSettings:
    """The settings, and for defaults what `Pipeline.save` wrote into the directory of an index.

    A saved fusion belongs to hybrid retrieval, and a reader that brings its own question encoder needs no
    saved one.
    """
    path = directory / SETTINGS_FILE
    saved: dict[str, Any] = read_json(path) if path.is_file() else {}
    if (directory / READER_DIR).is_dir():
        saved["reader"] = str(directory / READER_DIR)
    chosen = {name: getattr(settings, name) for name in OpenSettings.model_fields}
    own = {name: value for name, value in chosen.items() if value not in (None, "auto")}
    if settings.retriever not in ("auto", saved.get("retriever")) and "hybrid" not in str(settings.retriever):
        saved.pop("fusion", None)
    merged = {**chosen, **saved, **own}
    if merged["retriever"] in ("auto", "dense") and _bound_of(_reader_file(merged["reader"])):
        merged |= {name: chosen[name] for name in ("index_encoder", "fusion")}
    return OpenSettings(**merged)


def open_models(index: Index, settings: OpenSettings, *, reads: bool) -> tuple[Retriever, Reader | None]:
    """Open retriever and reader; the reader is None if none is wanted.

    Raises:
        ArtifactError: the index belongs to another encoder, or there is no such model.
        ConfigError: a setting does not fit the index.
    """
    from retrievers.open import named_kind, open_retriever

    reader, retriever, precision = settings.reader, settings.retriever, settings.precision
    fusion = None if settings.fusion is None else Fusion.parse(settings.fusion)
    file = _reader_file(reader)
    trained_with, bound = file.get("retriever") or {}, _bound_of(file)
    if reader and bound is None and not reads:
        raise ConfigError(
            f"{reader} is to search and not to read, but there is no question encoder in it",
            hint="leave the reader out, or give the folder that `rag train rag` or `emdr2` wrote",
        )
    if retriever not in ("auto", "dense"):
        bound = None
    if not isinstance(retriever, str):
        searcher: Retriever = retriever
        if given := [name for name in ("index_encoder", "fusion") if getattr(settings, name) is not None]:
            raise ConfigError(
                f"{given[0]} belongs to a retriever that is opened by name", hint="leave it out"
            )
    elif bound is None:
        searcher = open_retriever(
            index, retriever, encoder=settings.index_encoder, precision=precision, fusion=fusion
        )
    else:
        from retrievers.bound import open_bound

        if settings.index_encoder is not None or fusion is not None:
            raise ConfigError(
                f"{reader} brings its own question encoder: index_encoder and fusion cannot be given",
                hint="leave them out, or choose another --retriever",
            )
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
    first = retriever if judging is None else judging.first
    own_questions = getattr(getattr(retriever, "encoder", None), "questions_sha256", None)
    setting = "path_effort" if isinstance(retriever, PathRetriever) else "effort"
    effort = str(getattr(getattr(reader, "settings", None), setting, "full"))
    return {
        "retriever": type(first).__name__,
        **({"fusion": str(fusion)} if (fusion := getattr(first, "fusion", None)) else {}),
        **({"matching": True} if getattr(first, "matching", None) else {}),
        **({} if judging is None else {"rerank": judging.identity}),
        "encoder": index.manifest.get("encoder"),
        **({"question_encoder": own_questions} if own_questions else {}),
        "reader": None if reader is None else getattr(reader, "name", type(reader).__name__),
        **({"effort": effort} if effort != "full" else {}),
    }


def save(index: Index, opened: OpenSettings, place: Path, *, overwrite: bool) -> None:
    """Write an index with the models and settings that it was opened with; see `Pipeline.save`."""
    if place.exists() and place.resolve() == index.directory.resolve():
        raise ConfigError(f"{place} is the pipeline's own directory", hint="choose another one")
    check_target(place, folder=True)
    if place.exists() and any(place.iterdir()):
        if not overwrite:
            raise ConfigError(f"{place} is not empty", hint="choose another directory, or add --overwrite")
        read_manifest(place, kind=INDEX_KIND)  # what is no index is never deleted
    if not isinstance(opened.retriever, str):
        raise ConfigError(f"a {type(opened.retriever).__name__} cannot be saved", hint="open it by its kind")
    own = (ENCODER_DIR, READER_DIR, SETTINGS_FILE, ".lock")
    with replaced_folder(place) as temporary:
        if index.data == index.directory:  # an index of the first format
            ignore = shutil.ignore_patterns(*own, f".*{TEMPORARY_MARK}*")
            shutil.copytree(index.data, temporary, ignore=ignore, dirs_exist_ok=True)
        else:
            shutil.copytree(index.data, temporary / index.data.name)
            shutil.copyfile(index.directory / MANIFEST_NAME, temporary / MANIFEST_NAME)
        named = {name: getattr(opened, name) for name in ("retriever", "fusion", "effort")}
        settings = {name: value for name, value in named.items() if value not in (None, "auto")}
        if opened.rerank is not None:
            settings["rerank"] = _with_absolute_paths(opened.rerank)
        if index.encoder_identity is not None:
            kept = (index.directory / ENCODER_DIR).is_dir() or opened.index_encoder is None
            source = index.encoder_identity.name if kept else opened.index_encoder
            if name := _write(getattr(source, "identity", source), temporary / ENCODER_DIR):
                settings["index_encoder"] = name
        if opened.reader not in (None, False) and (name := _write(opened.reader, temporary / READER_DIR)):
            settings["reader"] = name
        if settings:
            atomic_write_json(temporary / SETTINGS_FILE, settings)


def _with_absolute_paths(rerank: str) -> str:
    """A re-ranker whose folder is named by its absolute path."""
    name, comma, options = rerank.partition(",")
    return f"{Path(name).resolve() if Path(name).is_dir() else name}{comma}{options}"


def _write(source: Any, folder: Path) -> str:
    """Write a model to `folder`; if that is not needed, its name."""
    if isinstance(source, EncoderIdentity):
        source = source.name
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"a {type(source).__name__} cannot be saved", hint="open the pipeline with its folder"
        )
    passages, separator, questions = str(source).partition(TOWER_SEPARATOR)
    if separator and Path(passages).is_dir() and Path(questions).is_dir():
        for number, name in enumerate((passages, questions)):
            shutil.copytree(tower_folders(Path(name))[number], folder / TOWER_NAMES[0][number])
        return ""
    if Path(source).is_dir():
        shutil.copytree(source, folder)
        return ""
    return str(source)


def _reader_file(reader: Any) -> Mapping[str, Any]:
    """The `reader.json` of a reader's folder, if it has one."""
    from readers.manifest import READER_FILE, read_reader_file

    if not isinstance(reader, str | Path) or not reader or not (Path(reader) / READER_FILE).exists():
        return {}
    return read_reader_file(Path(reader))


def _bound_of(reader_file: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How the question encoder in a reader's folder searches; None if there is none."""
    known = reader_file.get("retriever") or {}
    return None if "kind" in known else known or None


def _check_scores(reader: str, known: Mapping[str, Any], searched: str, index: Index) -> None:
    """Warn where a reader that counts scores in gets those of another kind of search or another encoder."""
    trained, log = known.get("kind", _OWN), get_logger(__name__)
    if trained.partition(":")[0] != searched.partition(":")[0]:
        log.warning(
            "%s was trained with the scores of %s; those of %s are not comparable, so expect worse answers",
            *(reader, trained, searched),
        )
    elif "encoder" in known and index.encoder_identity is not None:
        encoder = EncoderIdentity.from_json(known["encoder"])
        if differences := index.encoder_identity.differences(encoder):
            log.warning(
                "%s was trained with scores of the encoder %s; those of %s are not comparable (%s)",
                *(reader, encoder.name, index.directory, "; ".join(differences)),
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
