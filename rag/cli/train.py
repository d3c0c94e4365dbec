"""`rag train`: training recipes, one subcommand each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag.cli.recipe import (
    Assignments,
    ConfigSource,
    Encoder,
    Examples,
    HeldOut,
    Out,
    Threads,
    load_recipe,
    say_encoder,
)
from rag.cli.train_ance import adore, ance
from rag.cli.train_distill import distill
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
    from readers.training.config import ReaderTrainConfig
    from readers.training.recipe import train_reader

    sets = [{"questions": str(path)} for path in train or ()]
    if len(negatives or ()) > len(sets):
        raise ConfigError(
            f"{len(negatives or ())} --negatives for {len(sets)} --train",
            hint="give at most one for each --train, in their order",
        )
    for one, path in zip(sets, negatives or (), strict=False):
        one["retrieved"] = str(path)
    given = {"out": out, "train": sets, "encoder": encoder, "threads": threads}
    finished = train_reader(load_recipe(ReaderTrainConfig, config, set_, given))
    typer.echo(f"reader → {finished}\nuse it: rag ask … --reader {finished}")


@app.command()
def dpr(
    out: Out,
    train: Examples = None,
    validation: HeldOut = None,
    index: Annotated[
        Path | None, typer.Option("--index", "-i", help="Search its passages at every validation.")
    ] = None,
    encoder: Encoder = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
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
    finished = train_dpr(load_recipe(DprTrainConfig, config, set_, given))
    say_encoder(finished)


@app.command()
def mdr(
    out: Out,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Question sets with gold passages (HotpotQA …, .gz); may be given several times."),
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="The same, held out; default: a share of the training questions.")
    ] = None,
    index: Annotated[
        Path | None, typer.Option("--index", "-i", help="Its passages are the gold passages, and searched.")
    ] = None,
    encoder: Encoder = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Train a retriever over hops: each is asked with the question and the passages found so far (MDR).

    Ctrl-C or a crash loses at most a few minutes: the same command goes on from the last checkpoint. Search
    with it: --retriever multihop.
    """
    from retrievers.training.mdr import train_mdr
    from retrievers.training.mdr_config import MdrTrainConfig

    given = {
        "out": out, "train_files": train, "validation_file": validation, "index": index,
        "question_encoder": encoder, "threads": threads,
    }  # fmt: skip
    settings = load_recipe(MdrTrainConfig, config, set_, given)
    say_encoder(train_mdr(settings))
    if settings.data.negatives == "index":
        typer.echo(f"or, without encoding anything: rag ask … --index {out / 'index'} --retriever multihop")


@app.command()
def stop(
    train: Annotated[list[Path], typer.Option(help="Question sets of one and of more hops; repeat it.")],
    index: Annotated[list[Path], typer.Option("--index", "-i", help="One for all sets, or one for each.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the rule, for multihop:stop=FILE.")],
    hops: Annotated[int, typer.Option(help="Of the search that it is for.")] = 2,
    beam: Annotated[int, typer.Option(help="The same.")] = 5,
    questions: Annotated[int, typer.Option(help="Most questions of each set.")] = 1000,
    encoder: Encoder = None,
    seed: Annotated[int, typer.Option(help="Of the draw of questions.")] = 13,
) -> None:
    """Learn when multi-hop search has found enough, so that one-hop questions stay one-hop."""
    from rag.core.errors import ConfigError
    from retrievers.training.stop import describe, learn_stop

    if len(index) not in (1, len(train)):
        raise ConfigError(f"{len(index)} indexes for {len(train)} question sets, expected one or one each")
    sets = list(zip(train, index * (len(train) if len(index) == 1 else 1), strict=True))
    rule, figures = learn_stop(sets, hops=hops, beam=beam, most=questions, seed=seed, encoder=encoder)
    rule.save(out)
    typer.echo(f"{describe(figures)}\nrule → {out}\nuse it: --retriever multihop:hops={hops},stop={out}")


app.command()(ance)
app.command()(adore)
app.command()(generator)
app.command()(distill)
