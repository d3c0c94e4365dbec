"""`rag train distill`: a retriever learns a reader's scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag.cli.recipe import (
    Assignments,
    ConfigSource,
    Encoder,
    HeldOut,
    Out,
    Threads,
    load_recipe,
    say_encoder,
)


def distill(
    out: Out,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Examples with targets, as `rag score` writes them; may be given several times."),
    ] = None,
    validation: HeldOut = None,
    index: Annotated[
        Path | None, typer.Option("--index", "-i", help="Search its passages at every validation.")
    ] = None,
    encoder: Encoder = None,
    loss: Annotated[str | None, typer.Option(help="kl, kl-per-passage, mse or margin.")] = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Train a dense retriever towards a reader's scores of retrieved passages (DKRR and its kin).

    No gold passages are needed. Ctrl-C or a crash loses at most a few minutes: the same command goes on from
    the last checkpoint. With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train distill …
    """
    from retrievers.training.distill import DistillTrainConfig, train_distill

    given = {
        "out": out, "train_files": train, "validation_file": validation, "index": index,
        "question_encoder": encoder, "loss": loss, "threads": threads,
    }  # fmt: skip
    say_encoder(train_distill(load_recipe(DistillTrainConfig, config, set_, given)))
