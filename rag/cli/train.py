"""`rag train`: training recipes, one subcommand each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train models, one subcommand a recipe.")

_Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; an unfinished one is resumed.")]
_Config = Annotated[str | None, typer.Option(help="YAML or JSON file, or the name of a preset.")]
_Set = Annotated[list[str] | None, typer.Option("--set", help="key=value; wins over --config.")]
_Threads = Annotated[int | None, typer.Option(help="CPU threads; default: all cores.")]


@app.callback()
def _group() -> None:
    """Train models, one subcommand a recipe."""


@app.command()
def reader(
    out: _Out,
    train: Annotated[Path | None, typer.Option(help="SQuAD v1.1 JSON (.gz).")] = None,
    negatives: Annotated[
        Path | None, typer.Option(help="Results of `rag retrieve` for the same questions: hard negatives.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder to start from; default: the embedded one.")
    ] = None,
    config: _Config = None,
    set_: _Set = None,
    threads: _Threads = None,
) -> None:
    """Train an extractive reader on SQuAD questions with retrieved hard negatives.

    Ctrl-C or a crash loses at most a few minutes: the same command goes on from the last checkpoint.
    """
    from readers.training.config import ReaderTrainConfig
    from readers.training.recipe import train_reader

    given = {
        "out": out, "train_file": train, "negatives_file": negatives, "encoder": encoder, "threads": threads,
    }  # fmt: skip
    finished = train_reader(_load(ReaderTrainConfig, config, set_, given))
    typer.echo(f"reader → {finished}\nuse it: rag ask … --reader {finished}")


@app.command()
def dpr(
    out: _Out,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Training examples of `rag mine` or DPR's JSON (.gz); may be given several times."),
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="The same, held out; default: a share of the training questions.")
    ] = None,
    index: Annotated[
        Path | None, typer.Option("--index", "-i", help="Search its passages at every validation.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder to start from; default: the embedded one.")
    ] = None,
    config: _Config = None,
    set_: _Set = None,
    threads: _Threads = None,
) -> None:
    """Train a dense retriever with in-batch and hard negatives (DPR).

    Ctrl-C or a crash loses at most a few minutes: the same command goes on from the last checkpoint. With
    several GPUs: torchrun --nproc-per-node N -m rag.cli.main train dpr …
    """
    from retrievers.training.config import DprTrainConfig
    from retrievers.training.dpr import train_dpr

    given = {
        "out": out, "train_files": train, "validation_file": validation, "index": index,
        "question_encoder": encoder, "threads": threads,
    }  # fmt: skip
    finished = train_dpr(_load(DprTrainConfig, config, set_, given))
    _say_encoder(finished)


def _say_encoder(finished: Path) -> None:
    if os.environ.get("RANK", "0") == "0":
        typer.echo(f"encoder → {finished}\nuse it: rag index … --encoder {finished}")


def _load(kind: type[Any], source: str | None, assignments: list[str] | None, given: dict[str, Any]) -> Any:
    """The configuration: options of the command line win over --config, --set over both."""
    from rag.config import load_config, parse_overrides
    from rag.core.log import setup_logging

    setup_logging("INFO" if os.environ.get("RANK", "0") == "0" else "WARNING")
    overrides = {key: _plain(value) for key, value in given.items() if value}
    overrides.update(parse_overrides(assignments or []))
    return load_config(kind, source, overrides=overrides)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
