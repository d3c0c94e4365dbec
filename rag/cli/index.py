"""`rag index`: corpus → passages → embeddings → FAISS → BM25 → manifest."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from indexers.settings import BuildSettings, Stage
from rag.cli.options import (
    CORPUS,
    OUTPUT,
    Precision,
    RayAddress,
    adds_options,
    option,
    options_of,
    out_option,
)

_ENCODER, _UPDATES = "Encoder", "Updates"
_UPDATES_READ = ("format", "strict", "max_bad_share")  # options of reading that may differ in an update
_WORTH_TEACHING = 500  # passages: the fewest from which an encoder was seen to learn
_SETTINGS = {
    **options_of(
        BuildSettings,
        *("retriever", "index_type", "recall_target", "token_bits", "dtype", "k1", "b"),
        panel="Index",
        retriever="hybrid",
    ),
    **options_of(BuildSettings, "shard_rows", "threads", "seed", panel="Build"),
}


@adds_options("documents", CORPUS)
@adds_options("settings", _SETTINGS)
def index(
    corpus: Annotated[
        list[str],
        typer.Argument(help='Files, folders, patterns, hf:… or irds:…, "-" for stdin, or "sample".'),
    ],
    *,
    documents: dict[str, Any],
    encoder: Annotated[
        str | None,
        option(help="Hub name, folder, all-MiniLM-L6-v2 or static; default: minilm-qa.", panel=_ENCODER),
    ] = None,
    query_encoder: Annotated[
        str | None, option(help="Question encoder, if it is another model.", panel=_ENCODER)
    ] = None,
    precision: Precision = "auto",
    pooling: Annotated[
        Literal["auto", "cls", "mean"],
        option(help="How token vectors become the vector of a text.", panel=_ENCODER),
    ] = "auto",
    max_length: Annotated[
        int | None, option(min=1, help="Most tokens per passage; default: the encoder's.", panel=_ENCODER)
    ] = None,
    settings: dict[str, Any],
    reuse: Annotated[
        list[Path] | None,
        option(
            help="An earlier index of this encoder: only passages that it lacks are encoded. May be given "
            "several times.",
            panel="Build",
        ),
    ] = None,
    until: Annotated[Stage | None, option(help="Stop after this stage.", panel="Build")] = None,
    ray: RayAddress = None,
    out: Annotated[
        Path | None,
        out_option("Index directory; an unfinished one is continued."),
    ] = None,
    overwrite: Annotated[
        bool, option("--overwrite", help="Delete what is in --out first.", panel=OUTPUT)
    ] = False,
    update: Annotated[
        Path | None,
        option(
            help="Instead of --out: an existing index in which to replace only what changed.", panel=_UPDATES
        ),
    ] = None,
    watch: Annotated[
        bool, option("--watch", help="Go on updating whenever a file changes.", panel=_UPDATES)
    ] = False,
    interval: Annotated[
        float, option(min=0.1, help="Seconds between checks of the files, for --watch.", panel=_UPDATES)
    ] = 2.0,
    max_deleted_share: Annotated[
        float, option(min=0, max=1, help="Highest share of documents an update may delete.", panel=_UPDATES)
    ] = 0.5,
) -> None:
    """Build an index from a corpus, or update one. Run the same command again to continue a build."""
    if update is not None:
        from rag.cli.update_index import run_updates
        from rag.commands import resolve_corpus

        inputs, _ = resolve_corpus(corpus)
        defaults = {name: default for name, (_, default) in {**CORPUS, **_SETTINGS}.items()}
        defaults |= {"overwrite": False, "pooling": "auto"}
        of_the_index: dict[str, Any] = {
            **documents, **settings, "out": out, "query_encoder": query_encoder, "max_length": max_length,
            "reuse": reuse, "ray": ray, "until": until, "overwrite": overwrite, "pooling": pooling,
        }  # fmt: skip
        run_updates(
            inputs, update, documents, encoder=encoder, precision=precision, watch=watch, interval_s=interval,
            max_deleted_share=max_deleted_share,
            also_given=[
                name for name, value in of_the_index.items()
                if value != defaults.get(name) and name not in _UPDATES_READ
            ],
        )  # fmt: skip
        return
    if out is None or watch:
        raise _missing(out, watch)
    from rag.commands import index as build
    from rag.core.log import setup_logging
    from rag.data.records import ReadReport

    setup_logging("WARNING")
    report, before = ReadReport(), None if overwrite else _checksum(out)
    place = build(
        corpus, out, encoder=encoder, query_encoder=query_encoder, precision=precision, pooling=pooling,
        max_length=max_length, reuse=reuse or (), until=until, overwrite=overwrite, ray=ray, report=report,
        **documents, **settings,
    )  # fmt: skip
    if report.total:
        typer.echo(report.summary(listed=False))  # reading has listed the problems
    if before is not None and before == _checksum(place):
        typer.echo("nothing to do: the index was complete, and neither files nor settings have changed")
    if until is None:
        from indexers.index import Index
        from rag.data.sentences import language_notice

        with Index.open(place) as opened:
            typer.echo(opened.describe())
            notice = "" if encoder else language_notice(passage.text for passage in opened.passages)
            many = "dense" in opened.parts and len(opened.passages) >= _WORTH_TEACHING
        typer.echo(f'{notice}\nask it: rag ask "…" --index {place}')
        if encoder is None and many:
            typer.echo(f"unlike Wikipedia? teach the encoder: rag adapt --index {place} --out …")
    else:
        typer.echo(f"stopped after {until}; the same command without --until continues")


def _checksum(place: Path) -> str | None:
    """Checksum of a finished index; None if there is none."""
    from rag.core.manifest import MANIFEST_NAME, read_manifest

    return read_manifest(place).get("checksum") if (place / MANIFEST_NAME).is_file() else None


def _missing(out: Path | None, watch: bool) -> Exception:
    from rag.core.errors import ConfigError

    if watch and out is not None:
        return ConfigError(
            "--watch goes with --update INDEX, not with --out", hint="build it first, then watch it"
        )
    return ConfigError("give --out DIR to build an index, or --update INDEX to bring one up to date")
