"""`rag train`: training recipes, one subcommand each."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli import train_retrievers as retrievers
from rag.cli.options import DATA, SEARCH, TRAINING, option
from rag.cli.recipe import (
    Assignments,
    ConfigSource,
    From,
    Out,
    Threads,
    files,
    index,
    load_recipe,
    run_recipe,
    training_command,
)
from rag.cli.train_joint import emdr2, mlm, orqa, rag, realm
from rag.core.errors import ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train models, one subcommand per recipe.")


@app.command(rich_help_panel="Readers")
def reader(
    *,
    train: Annotated[
        list[Path] | None,
        option(help="Questions with answers, of any format; may be given several times.", panel=DATA),
    ] = None,
    negatives: Annotated[
        list[Path] | None,
        option(
            help="Results of `rag retrieve` for the questions of the --train in the same place: hard "
            "negatives, and positives where there are no gold passages.",
            panel=DATA,
        ),
    ] = None,
    from_: From = None,
    config: ConfigSource = None,
    set_: Assignments = None,
    threads: Threads = None,
    out: Out,
) -> None:
    """Train an extractive reader on questions with gold passages, or with retrieved ones that match answers.

    Ctrl-C or a crash loses at most a few minutes: the same command resumes from the last checkpoint.
    """
    sets = [{"questions": str(path)} for path in train or ()]
    if len(negatives or ()) > len(sets):
        raise ConfigError(
            f"{len(negatives or ())} --negatives for {len(sets)} --train",
            hint="give at most one for each --train, in their order",
        )
    for one, path in zip(sets, negatives or (), strict=False):
        one["retrieved"] = str(path)
    given = {"out": out, "train": sets, "encoder": from_, "threads": threads}
    settings = load_recipe("reader", config, set_, {"train": "--train"}, **given)
    finished = run_recipe("reader", settings)
    typer.echo(f"reader → {finished}\nuse it: rag ask … --reader {finished}")


@app.command(rich_help_panel="Readers")
@training_command(
    train=files(
        "Questions with passages: results of `rag retrieve`, FiD's or DPR's files, of `rag mine`; with "
        "--index any question set"
    ),
    index=index("Passages to denoise, and for questions that come without passages."),
    top_k=Annotated[
        int | None, option(min=1, help="Passages to retrieve per question; default: 20.", panel=SEARCH)
    ],
    from_=None,
    model=Annotated[
        str | None,
        option("--from", help="Sequence-to-sequence checkpoint (BART, T5 …) to start from.", panel=TRAINING),
    ],
    encoder=Annotated[
        str | None,
        option(
            "--warm-start",
            help='Encoder whose weights a new model starts with, without --from; or "shipped", the reader.',
            panel=TRAINING,
        ),
    ],
)
def generator(settings: Any) -> None:
    """Train a reader that generates its answers: Fusion-in-Decoder.

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train generator …
    """
    finished = run_recipe("generator", settings)
    typer.echo(f"reader → {finished}\nuse it: rag ask … --reader {finished}")


for _panel, _commands in {
    "Retrievers": (
        *(retrievers.dpr, retrievers.ance, retrievers.mdr, retrievers.ict),
        *(retrievers.distill, retrievers.static, retrievers.colbert, retrievers.reranker),
    ),
    "Retriever and reader together": (orqa, realm, mlm, rag, emdr2),
}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
