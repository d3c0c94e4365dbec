"""`rag index`: corpus → passages → embeddings → FAISS → BM25 → manifest; and updates of it."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from cyclopts import Parameter
from cyclopts.validators import Number

from indexers.settings import BuildSettings
from rag.cli.options import AsJson, options_of, with_options, without
from rag.cli.show import say
from rag.core.errors import ConfigError, RagError, ResourceError
from rag.core.types import Groups
from rag.data.formats import CorpusFormat
from rag.data.records import CorpusOptions, ReadReport
from rag.opening import Precision
from rag.options import IndexOptions, UpdateOptions
from retrievers.encoders.options import EncoderOptions

if TYPE_CHECKING:
    from indexers.index import Index

# Time between two looks at watched files.
_CHECK_EVERY_S = 2.0


@with_options(
    options_of(EncoderOptions, panel="Encoder"),
    options_of(CorpusOptions, panel="Corpus"),
    without(options_of(BuildSettings, panel="Index", retriever="hybrid"), "probes"),
)
def index(
    corpus: list[str],
    /,
    *,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    overwrite: bool = False,
    format: Literal["auto", CorpusFormat] = "auto",
    encoder: str | None = None,
    reuse: str | None = None,
    ray: str | None = None,
    precision: Precision = "auto",
    update: Path | None = None,
    watch: bool = False,
    max_deleted_share: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.5,
    **settings: Unpack[IndexOptions],
) -> None:
    """Build an index from a corpus, or update one. Run the same command again to continue a build.

    Args:
        corpus: Files, folders, hf:… or irds:…, or "sample".
        out: Index directory; an unfinished one is continued.
        overwrite: Delete what is in --out first.
        format: Format of the corpus; auto looks at names and first bytes.
        encoder: Hub name, folder, all-MiniLM-L6-v2, static, "PASSAGES + QUESTIONS",
            openai:BASE_URL#MODEL; default: minilm-qa.
        reuse: An earlier index of this encoder: only passages that it lacks are encoded.
        ray: Address of a Ray cluster that encodes the passages (HOST:PORT, or auto).
        precision: Number format in which the encoder computes.
        update: Instead of --out: an existing index in which to replace only what changed.
        watch: Go on updating whenever a file changes.
        max_deleted_share: Highest share of documents an update may delete.
    """
    from rag.commands import index as build
    from rag.core.log import setup_logging

    setup_logging("WARNING")
    if (out is None) is (update is None):
        hint = "add {out}" if out is None else "leave one of the two out"
        raise ConfigError(
            "give {out}, to build an index, or {update}, to renew one",
            hint=hint,
            arguments=("out", "update"),
        )
    if out is not None:
        if watch:
            raise ConfigError(
                "{watch} goes with {update}",
                hint="build the index first, then watch it",
                arguments=("watch", "update"),
            )
        report = ReadReport()
        build(
            corpus,
            out,
            report=report,
            format=format,
            encoder=encoder,
            reuse=reuse,
            ray=ray,
            precision=precision,
            overwrite=overwrite,
            **settings,
        )
        _describe(out, report)
    elif update is not None:
        options = UpdateOptions(
            format=format,
            max_bad_share=settings.pop("max_bad_share", 0.01),
            max_deleted_share=max_deleted_share,
        )
        _refuse_settings(
            encoder=encoder, reuse=reuse, ray=ray, overwrite=overwrite or None, **settings
        )
        _update(corpus, update, watch=watch, precision=precision, options=options)


def _refuse_settings(**settings: object) -> None:
    """Refuse what an update cannot change."""
    given = [name for name, value in settings.items() if value is not None]
    if given:
        raise ConfigError(
            f"{', '.join(f'{{{name}}}' for name in given)} cannot be given with {{update}}",
            hint="an update keeps the encoder and settings of the index; leave this out, or build a "
            "new one",
            arguments=(*given, "update"),
        )


def rights(
    index: Path,
    documents: list[str] | None = None,
    /,
    *,
    groups: str | None = None,
    everybody: bool = False,
    as_json: AsJson = False,
) -> None:
    """Show who may read the documents of an index, or change it for the next question.

    Args:
        index: Directory written by `rag index`.
        documents: Ids of documents; with a slash at the end, all in a folder. Default: all that
            have groups.
        groups: Groups that may read them from now on, such as staff,board.
        everybody: Everybody who may ask may read them from now on.
        as_json: Print one JSON object.
    """
    from indexers.index import Index
    from indexers.rights import change_rights, read_rights
    from rag.data.metadata import groups_of_person

    with Index.open(index) as opened:
        chosen = _documents_of(opened, documents or [])
    if groups is not None or everybody:
        if not chosen or everybody == bool(groups):
            raise ConfigError(
                "give documents, and either {groups} or {everybody}",
                hint="without both, rights are shown",
                arguments=("groups", "everybody"),
            )
        named = None if everybody else groups_of_person(groups)
        change_rights(index, lambda before: before.stating(dict.fromkeys(chosen, named)))
    now = read_rights(index)[0]
    groups_of = {id: now.of(id) for id in chosen or sorted({**now.folders, **now.stated})}
    if as_json:
        say(json.dumps(groups_of, ensure_ascii=False))
        return
    for id, names in groups_of.items():
        people = "everybody"
        if names is not None:
            # A comma may belong to a name.
            people = ", ".join(json.dumps(name) if "," in name else name for name in names)
        say(f"{id}: {people}")
    if not documents:
        say("all other documents: everybody")


def _documents_of(index: "Index", names: Sequence[str]) -> list[str]:
    """Ids of the documents that are named, or that are in a folder that is."""
    chosen = dict[str, None]()
    for name in names:
        found = [] if index.documents.find(name) is None else [name]
        if name.endswith("/"):
            found += [entry.id for entry in index.documents if entry.id.startswith(name)]
        if not found:
            raise ConfigError(
                f"{index.directory} has no document {name!r}",
                hint="a file's id is its path in the folder that was indexed",
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _describe(index: Path, report: ReadReport) -> None:
    """Print what was read, and what the finished index holds."""
    from indexers.index import Index

    for note in report.notes:
        say(note)
    if report.total:
        say(report.counts())
    with Index.open(index) as opened:
        say(opened.describe())
    say(f'\nask it: rag ask "…" --index {index}')


def _update(
    corpus: Sequence[str], index: Path, *, watch: bool, precision: str, options: UpdateOptions
) -> None:
    """Update an index once, or (to watch) whenever files change, and print what was done."""
    from indexers.manifest import Manifest
    from rag.commands import resolve_corpus
    from rag.updates import IndexUpdater

    inputs, _ = resolve_corpus(corpus)
    updater = IndexUpdater(index, precision=precision)
    exclude = Manifest.read(index).source.get("options", {}).get("exclude", [])

    def update() -> None:
        report = updater.follow(inputs, **options)
        say(f"{index}: version {report.version}, {report}")

    updated = _state_of(inputs, options["format"], exclude)
    update()
    if not watch:
        say(f'\nask it: rag ask "…" --index {index}')
        return
    say(f"watching {', '.join(inputs)}; Ctrl-C ends it", err=True)
    now = updated
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_CHECK_EVERY_S)
            before = now
            now = _state_of(inputs, options["format"], exclude)
            # A file that is still written is not read by half.
            if now == updated or now != before:
                continue
            try:
                update()
            except RagError as error:
                say(f"not updated: {error}", err=True)
                # After another writer, a full disk, or an encoder that was away, the next look
                # tries again.
                if isinstance(error, ResourceError):
                    continue
            updated = now


def _state_of(
    corpus: Sequence[str], format: str, exclude: Sequence[str]
) -> Mapping[str, tuple[int, int, Groups | None]]:
    """Size of each file, when its content or its permissions changed last, and its folder's
    groups.
    """
    from rag.data.files.sources import find_sources

    state = {}
    # A folder that is gone is a change, and reading says what is wrong.
    with suppress(RagError):
        for source in find_sources(corpus, format, exclude=exclude):
            with suppress(OSError):
                status = os.stat(source.path)
                state[source.path] = (status.st_size, status.st_ctime_ns, source.groups)
    return state
