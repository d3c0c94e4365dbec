"""`rag train`: training recipes, one subcommand each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag.cli import train_retrievers as retrievers
from rag.cli.recipe import Assignments, ConfigSource, Encoder, Out, Threads, load_recipe, run_recipe
from rag.cli.train_generator import generator
from rag.core.errors import ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train models, one subcommand a recipe.")


@app.callback()
def _group() -> None:
    """Train models, one subcommand a recipe."""


@app.command()
def reader(
    out: Out,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Questions with answers, of any format; may be given several times."),
    ] = None,
    negatives: Annotated[
        list[Path] | None,
        typer.Option(
            help="Results of `rag retrieve` for the questions of the --train in the same place: hard "
            "negatives, and positives where there are no gold passages."
        ),
    ] = None,
    encoder: Encoder = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Train an extractive reader on questions with gold passages, or with retrieved ones that match answers.

    Ctrl-C or a crash loses at most a few minutes: the same command goes on from the last checkpoint.
    """
    sets = [{"questions": str(path)} for path in train or ()]
    if len(negatives or ()) > len(sets):
        raise ConfigError(
            f"{len(negatives or ())} --negatives for {len(sets)} --train",
            hint="give at most one for each --train, in their order",
        )
    for one, path in zip(sets, negatives or (), strict=False):
        one["retrieved"] = str(path)
    given = {"out": out, "train": sets, "encoder": encoder, "threads": threads}
    finished = run_recipe("reader", load_recipe("reader", config, set_, **given))
    typer.echo(f"reader → {finished}\nuse it: rag ask … --reader {finished}")


for _command in (
    *(retrievers.dpr, retrievers.mdr, retrievers.stop, retrievers.ance, retrievers.adore, retrievers.ict),
    *(generator, retrievers.distill),
):
    app.command()(_command)
