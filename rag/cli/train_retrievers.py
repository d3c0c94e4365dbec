"""`rag train dpr`, `ance`, `adore`, `ict`, `mdr`, `distill` and `stop`: what trains retrievers."""

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
    run_recipe,
    say_encoder,
)

_Index = Annotated[Path | None, typer.Option("--index", "-i", help="Its passages are the corpus.")]
_SearchedIndex = Annotated[
    Path | None, typer.Option("--index", "-i", help="Search its passages at every validation.")
]


def dpr(
    out: Out,
    train: Examples = None,
    validation: HeldOut = None,
    index: _SearchedIndex = None,
    encoder: Encoder = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Train a dense retriever with in-batch and hard negatives (DPR).

    Ctrl-C or a crash loses at most a few minutes: the same command goes on from the last checkpoint. With
    several GPUs: torchrun --nproc-per-node N -m rag.cli.main train dpr …
    """
    settings = load_recipe(
        "dpr", config, set_, out=out, train_files=train, validation_file=validation, index=index,
        question_encoder=encoder, threads=threads,
    )  # fmt: skip
    say_encoder(run_recipe("dpr", settings))


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

    settings = load_recipe(
        "ance", config, set_, out=out, train_files=train, validation_file=validation, index=index,
        question_encoder=encoder, threads=threads, refresh=refresh,
    )  # fmt: skip
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
    settings = load_recipe(
        "adore", config, set_, out=out, train_files=train, validation_file=validation, index=index,
        question_encoder=encoder, threads=threads,
    )  # fmt: skip
    finished = run_recipe("adore", settings)
    typer.echo(f"encoder → {finished}\nindex → {settings.out / 'index'}")
    typer.echo(f"use them: rag ask … --index {settings.out / 'index'}")


def ict(
    out: Out,
    train: Annotated[
        list[Path] | None,
        typer.Option(
            "--corpus", "--train", help="A built index, or files of documents; may be given several times."
        ),
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Training examples to score; default: passages that are held out.")
    ] = None,
    index: _SearchedIndex = None,
    encoder: Encoder = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Train a dense retriever from passages alone: a sentence is to find where it was taken from (ICT).

    Ctrl-C or a crash loses at most a few minutes: the same command goes on from the last checkpoint. With
    several GPUs: torchrun --nproc-per-node N -m rag.cli.main train ict …
    """
    settings = load_recipe(
        "ict", config, set_, out=out, train_files=train, validation_file=validation, index=index,
        question_encoder=encoder, threads=threads,
    )  # fmt: skip
    say_encoder(run_recipe("ict", settings))


def mdr(
    out: Out,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Question sets with gold passages (HotpotQA …, .gz); may be given several times."),
    ] = None,
    validation: HeldOut = None,
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
    settings = load_recipe(
        "mdr", config, set_, out=out, train_files=train, validation_file=validation, index=index,
        question_encoder=encoder, threads=threads,
    )  # fmt: skip
    say_encoder(run_recipe("mdr", settings))
    if settings.data.negatives == "index":
        typer.echo(f"or, without encoding anything: rag ask … --index {out / 'index'} --retriever multihop")


def distill(
    out: Out,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Examples with targets, as `rag score` writes them; may be given several times."),
    ] = None,
    validation: HeldOut = None,
    index: _SearchedIndex = None,
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
    settings = load_recipe(
        "distill", config, set_, out=out, train_files=train, validation_file=validation, index=index,
        question_encoder=encoder, threads=threads, loss=loss,
    )  # fmt: skip
    say_encoder(run_recipe("distill", settings))


def stop(
    train: Annotated[list[Path], typer.Option(help="Question sets of one and of more hops; repeat it.")],
    encoder: Annotated[str, typer.Option(help="The index's encoder, whose question vectors are judged.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the rule, for multihop:stop=FILE.")],
    hops: Annotated[int, typer.Option(help="Most hops of the search that it is for.")] = 2,
    lost: Annotated[
        float, typer.Option(help="Tolerated share of questions that need more and are stopped.")
    ] = 0.05,
    questions: Annotated[int, typer.Option(help="Most questions of each set.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the draw of questions.")] = 13,
) -> None:
    """Learn which questions need no further hop, so that one-hop questions stay one-hop."""
    from retrievers.training.stop import learn_stop

    rule, figures = learn_stop(train, encoder, hops=hops, lost=lost, most=questions, seed=seed)
    rule.save(out)
    typer.echo("\n".join(map(str, figures)))
    typer.echo(f"rule → {out}\nuse it: --retriever multihop:hops={hops},stop={out}")
