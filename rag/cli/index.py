"""`rag index`: corpus → passages → embeddings → FAISS → BM25 → manifest; and updates of it."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from indexers.settings import BuildSettings
from rag.cli.lazy import resumable
from rag.cli.options import OPENING, Share, options_from, options_of, some
from rag.commands import index as build
from rag.commands import resolve_corpus
from rag.data.records import CorpusOptions, ReadReport
from retrievers.encoders.options import EncoderOptions

_FROM_BUILD = options_from(build, panel="Data")
_BUILDING = {
    **some(_FROM_BUILD, "format", "encoder", "reuse", "ray", "overwrite"),
    **options_of(EncoderOptions, panel="Models"),
    **options_of(CorpusOptions, panel="Data"),
    **some(OPENING, "precision"),
    **some(
        options_of(BuildSettings, panel="Index", retriever="hybrid"),
        without=("probes", "java_heap_mib"),
    ),
}
_CHECK_EVERY_S = 2.0  # how often files are looked at that are watched
_UPDATING = ("format", "max_bad_share", "precision")  # options that an update takes too


def index(
    corpus: list[str],
    /,
    *,
    out: Path | None = None,
    update: Path | None = None,
    watch: bool = False,
    max_deleted_share: Share = 0.5,
    **options: Annotated[Any, _BUILDING],
) -> None:
    """Build an index from a corpus, or update one. Run the same command again to continue a build.

    Args:
        corpus: Files, folders, hf:… or irds:…, or "sample".
        out: Index directory; an unfinished one is continued.
        update: Instead of --out: an existing index in which to replace only what changed.
        watch: Go on updating whenever a file changes.
        max_deleted_share: Highest share of documents an update may delete.
    """
    from rag.core.errors import ConfigError
    from rag.core.log import setup_logging

    setup_logging("WARNING")
    if (out is None) is (update is None) or (watch and update is None):
        hint = "add --out DIR" if out is None else "leave one of the two out"
        if watch:
            hint = "--watch goes with --update INDEX: build it first, then watch it"
        raise ConfigError(
            "give --out DIR, to build an index, or --update INDEX, to renew one", hint=hint
        )
    if update is None:
        _build(corpus, Path(str(out)), **options)
        return
    read = {name: options.pop(name) for name in _UPDATING}
    if changed := [name for name, value in options.items() if value != _BUILDING[name][1]]:
        flags = ", ".join(f"--{name}" for name in changed).replace("_", "-")
        hint = "an update keeps the encoder and settings of the index; leave this out, or build a new one"
        raise ConfigError(f"{flags} cannot be given with --update", hint=hint)
    _update(corpus, update, watch=watch, max_deleted_share=max_deleted_share, **read)


def _build(corpus: Sequence[str], out: Path, **options: Any) -> None:
    from indexers.index import Index

    report = ReadReport()
    with resumable():
        place = build(corpus, out, report=report, **options)
    for note in report.notes:
        typer.echo(note)
    if report.total:
        typer.echo(report.counts())
    with Index.open(place) as opened:
        typer.echo(opened.describe())
    typer.echo(f'\nask it: rag ask "…" --index {place}')


def _update(
    corpus: Sequence[str], place: Path, *, watch: bool, precision: str, **options: Any
) -> None:
    """Update an index once, or (to watch) whenever files change, and print what was done."""
    from indexers.manifest import Manifest
    from rag.core.errors import RagError, ResourceError
    from rag.updates import IndexUpdater

    inputs, _ = resolve_corpus(corpus)
    updater = IndexUpdater(place, precision=precision)
    exclude = Manifest.read(place).source.get("options", {}).get("exclude", [])

    def update() -> None:
        done = updater.follow(inputs, **options)
        typer.echo(f"{place}: version {done.version}, {done}")

    updated = now = _state_of(inputs, options["format"], exclude)
    update()
    if not watch:
        typer.echo(f'\nask it: rag ask "…" --index {place}')
        return
    typer.echo(f"watching {', '.join(inputs)}; Ctrl-C ends it", err=True)
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_CHECK_EVERY_S)
            before, now = now, _state_of(inputs, options["format"], exclude)
            if now == updated or now != before:  # a file that is still written is not read by half
                continue
            try:
                update()
            except RagError as error:
                typer.echo(f"not updated: {error}", err=True)
                if isinstance(error, ResourceError):  # another writer, or a full disk: tried again
                    continue
            updated = now


def _state_of(
    corpus: Sequence[str], format: str, exclude: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Size of each file, and when its content or its permissions changed last."""
    from rag.core.errors import RagError
    from rag.data.files.sources import find_sources

    state = {}
    with suppress(RagError):  # a folder that is gone is a change, and reading says what is wrong
        for source in find_sources(corpus, format, exclude=exclude):
            with suppress(OSError):
                status = os.stat(source.path)
                state[source.path] = (status.st_size, status.st_ctime_ns)
    return state
