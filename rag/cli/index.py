"""`rag index`: corpus → passages → embeddings → FAISS → BM25 → manifest."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from indexers.settings import BuildSettings, Stage
from rag.cli.options import CORPUS, OUTPUT, Precision, adds_options, option, options_of, read_and_split

if TYPE_CHECKING:
    from indexers.protocols import PassageEncoder
    from indexers.reuse import KnownVectors

SAMPLE = "sample"
_ENCODER = "Encoder"
_SETTINGS = {
    **options_of(BuildSettings, "retriever", "index_type", "token_bits", "dtype", "k1", "b", panel="Index"),
    **options_of(BuildSettings, "shard_rows", "threads", "seed", panel="Build"),
}


@adds_options("documents", CORPUS)
@adds_options("settings", _SETTINGS)
def index(
    corpus: Annotated[
        list[str],
        typer.Argument(help='Files, folders, patterns, hf:owner/name, "-" for stdin, or "sample".'),
    ],
    *,
    documents: dict[str, Any],
    encoder: Annotated[
        str | None, option(help="Hub name or folder; default: the embedded one.", panel=_ENCODER)
    ] = None,
    query_encoder: Annotated[
        str | None, option(help="Question encoder, if it is another model.", panel=_ENCODER)
    ] = None,
    precision: Precision = "auto",
    pooling: Annotated[
        Literal["auto", "cls", "mean"], option(help="How a vector is made of a text.", panel=_ENCODER)
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
    out: Annotated[
        Path, option(*("--out", "-o"), help="Index directory; an unfinished one is continued.", panel=OUTPUT)
    ],
    overwrite: Annotated[
        bool, option("--overwrite", help="Delete what is in --out first.", panel=OUTPUT)
    ] = False,
) -> None:
    """Build an index from a corpus. Run the same command again to continue an interrupted build."""
    from indexers.build import build_index
    from rag.config import load_config
    from rag.core.log import setup_logging
    from rag.data.corpus import ReadReport, read_documents
    from rag.data.split import split_documents
    from retrievers.encoders.open import load_encoder, passage_budget

    setup_logging("WARNING")
    checked = load_config(BuildSettings, overrides=settings)
    inputs, is_sample = _resolve(corpus)
    if is_sample and documents["split"] == "auto":
        documents["split"] = "none"
    max_tokens, count_tokens = passage_budget(encoder, max_length)
    read_options, split_options = read_and_split(documents, max_tokens=max_tokens)
    report = ReadReport()
    read = read_documents(inputs, format=documents["format"], options=read_options, report=report)
    loaded: PassageEncoder | None = None
    if checked.has_encoder and until != "passages":
        loaded = load_encoder(
            encoder, query_encoder=query_encoder, precision=precision, pooling=pooling, max_length=max_length
        )
    known = _known_vectors(reuse, loaded, checked, out) if reuse and until != "passages" else None
    place = build_index(
        split_documents(read, split_options, count_tokens),
        out,
        encoder=known or loaded,
        settings=checked,
        source=_describe(inputs, documents["format"], asdict(split_options), asdict(read_options)),
        overwrite=overwrite,
        until=until,
    )
    if report.total:
        typer.echo(report.summary())
    if known is not None:
        typer.echo(f"{known.reused:,} vectors taken over")
    if until is None:
        from indexers.index import Index

        with Index.open(place) as opened:
            typer.echo(opened.describe())
        typer.echo(f'\nask it: rag ask "…" --index {place}')
    else:
        typer.echo(f"stopped after {until}; the same command without --until continues")


def _known_vectors(
    reuse: list[Path], encoder: PassageEncoder | None, settings: BuildSettings, out: Path
) -> KnownVectors:
    from indexers.reuse import KnownVectors
    from rag.core.errors import ConfigError

    if encoder is None or not settings.has_dense:
        raise ConfigError(
            "--reuse takes over one vector per passage, and this build makes none",
            hint="leave it out: BM25 and token vectors are built again in any case",
        )
    if out.resolve() in [path.resolve() for path in reuse]:
        raise ConfigError(
            f"--reuse and --out are both {out}", hint="build into a new directory, then switch to it"
        )
    return KnownVectors(encoder, reuse, settings.stored_dtype)


def _resolve(corpus: list[str]) -> tuple[list[str], bool]:
    """Replace the word "sample" by the corpus in the package, unless a file of that name exists."""
    if corpus == [SAMPLE] and not Path(SAMPLE).exists():
        from rag.sample import corpus_path

        return [str(corpus_path())], True
    return corpus, False


def _describe(
    inputs: list[str], format: str, split: dict[str, Any], read: dict[str, Any]
) -> dict[str, Any] | None:
    """What identifies the passages without reading them; None if only reading can tell (stdin)."""
    from rag.core.files import sha256_file
    from rag.data.files.sources import DOCUMENTS, find_sources

    files = []
    for source in find_sources(inputs, format):
        if source.path == "-":
            return None
        path = Path(source.path)
        entry: dict[str, Any] = {"name": source.path, "format": source.format}
        if path.is_file():
            name = source.name if source.format == DOCUMENTS else path.name
            try:
                digest = sha256_file(path)
            except OSError:  # one may not read it: reading says so, and goes on with the others
                digest = ""
            entry = {"name": name, "format": source.format, "sha256": digest}
        files.append(entry)
    if all(entry["format"] != DOCUMENTS for entry in files):  # no sections, whose size an encoder decides
        del split["max_tokens"]
    for unrelated in ("shown_problems", "cache", "strict"):
        read.pop(unrelated, None)
    described: dict[str, Any] = json.loads(json.dumps({"files": files, "split": split, "read": read}))
    return described
