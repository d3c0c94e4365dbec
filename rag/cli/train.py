"""`rag train`: training recipes, one subcommand each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train models, one subcommand a recipe.")


@app.callback()
def _group() -> None:
    """Train models, one subcommand a recipe."""


@app.command()
def reader(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the run; an unfinished one is resumed.")
    ],
    train: Annotated[Path | None, typer.Option(help="SQuAD v1.1 JSON (.gz).")] = None,
    negatives: Annotated[
        Path | None, typer.Option(help="Results of `rag retrieve` for the same questions: hard negatives.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder to start from; default: the embedded one.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="YAML or JSON file, or the name of a preset.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value; wins over --config.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all cores.")] = None,
) -> None:
    """Train an extractive reader on SQuAD questions with retrieved hard negatives.

    Ctrl-C or a crash loses at most a few minutes: the same command goes on from the last checkpoint.
    """
    from rag.config import load_config, parse_overrides
    from rag.core.log import setup_logging
    from readers.training.config import ReaderTrainConfig
    from readers.training.recipe import train_reader

    setup_logging("INFO")
    given: dict[str, Any] = {
        "out": str(out), "train_file": _text(train), "negatives_file": _text(negatives),
        "encoder": encoder, "threads": threads,
    }  # fmt: skip
    overrides = {key: value for key, value in given.items() if value is not None}
    overrides.update(parse_overrides(set_ or []))
    finished = train_reader(load_config(ReaderTrainConfig, config, overrides=overrides))
    typer.echo(f"reader → {finished}\nuse it: rag ask … --reader {finished}")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
