"""`rag train ance` and `rag train adore`: training against an index."""

from __future__ import annotations

from enum import StrEnum
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

_Index = Annotated[Path | None, typer.Option("--index", "-i", help="Its passages are the corpus.")]


class Role(StrEnum):
    """What a process does."""

    BOTH = "both"
    TRAINER = "trainer"
    INFERENCER = "inferencer"


def ance(
    out: Out,
    train: Examples = None,
    validation: HeldOut = None,
    index: _Index = None,
    encoder: Encoder = None,
    role: Annotated[
        Role, typer.Option(help="both: train and mine in turn; or one of the two processes that share --out.")
    ] = Role.BOTH,
    refresh: Annotated[
        str | None,
        typer.Option(help='"never", "every 500", "0:500,2000:2000" (from step:every), "drift>0.05".'),
    ] = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Train a dense retriever with negatives that it finds itself, found anew as it learns (ANCE).

    In two processes, start the same command twice, with --role trainer and --role inferencer. Either may be
    killed at any time: the same command goes on.
    """
    from retrievers.training.ance import run_inferencer, train_ance
    from retrievers.training.ance_config import AnceTrainConfig

    given = {
        "out": out, "train_files": train, "validation_file": validation, "index": index,
        "question_encoder": encoder, "refresh": refresh, "threads": threads,
    }  # fmt: skip
    settings = load_recipe(AnceTrainConfig, config, set_, given)
    if role is Role.INFERENCER:
        typer.echo(f"negatives → {run_inferencer(settings)}")
    else:
        say_encoder(train_ance(settings, role="both" if role is Role.BOTH else "trainer"))


def adore(
    out: Out,
    train: Examples = None,
    validation: HeldOut = None,
    index: _Index = None,
    encoder: Encoder = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Train the question encoder alone, against the vectors of an index that stays as it is (ADORE).

    Afterwards OUT/index is that index for the trained encoder: nothing has to be encoded again.
    """
    from retrievers.training.adore import train_adore
    from retrievers.training.ance_config import AdoreTrainConfig

    given = {
        "out": out, "train_files": train, "validation_file": validation, "index": index,
        "question_encoder": encoder, "threads": threads,
    }  # fmt: skip
    settings = load_recipe(AdoreTrainConfig, config, set_, given)
    finished = train_adore(settings)
    typer.echo(f"encoder → {finished}\nindex → {settings.out / 'index'}")
    typer.echo(f"use them: rag ask … --index {settings.out / 'index'}")
