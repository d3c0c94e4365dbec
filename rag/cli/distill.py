"""`rag distill`: rounds of retrieving, reading, scoring and training, from questions and answers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import IndexEncoder, ReaderSpec, RetrieverSpec, adds_options, options_of
from rag.cli.recipe import Assignments, ConfigSource, From, Out, Threads, load_recipe
from rag.rounds.config import DistillationRoundsConfig

_SETTINGS = options_of(
    DistillationRoundsConfig,
    *("held_out", "validation_fraction", "signal", "rounds", "top_k", "figure", "profile", "restart"),
    *("next_retriever", "train_questions"),
)


@adds_options("settings", _SETTINGS)
def distill(
    index: Annotated[Path, typer.Option("--index", "-i", help="What the first round searches.")],
    questions: Annotated[
        str, typer.Option("--questions", "-q", help="Questions with answers; gold passages are not needed.")
    ],
    out: Out,
    settings: dict[str, Any],
    reader: ReaderSpec = None,
    train_reader: Annotated[
        str | None,
        typer.Option(help="Train one anew in every round: a preset or file of recipe reader or generator."),
    ] = None,
    retriever: RetrieverSpec = "auto",
    index_encoder: IndexEncoder = None,
    from_: From = None,
    config: ConfigSource = "distill-small",
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Teach a retriever from a reader in rounds, until a round gains nothing beyond noise (DKRR and its kin).

    --config and --set are those of `rag train distill`. A killed run goes on after its last finished stage,
    and inside the stages that take long, when the same command is given again.
    """
    from rag.recipes import read_config
    from rag.rounds.by_reader import DistillationRounds
    from rag.rounds.rounds import run_rounds, table

    training = load_recipe(
        "distill", config, set_, out=out, train_files=[out / "scored.json"], question_encoder=from_,
        threads=threads,
    )  # fmt: skip
    settings |= {"out": out, "index": index, "questions": questions, "reader": reader}
    settings |= {"retriever": retriever, "index_encoder": index_encoder}
    chosen = read_config(DistillationRoundsConfig, None, settings)
    make = None if train_reader is None else _maker(train_reader, chosen.signal)
    results = run_rounds(chosen, training, DistillationRounds(chosen, make))
    typer.echo("\n".join(table(results, chosen.figure)))
    typer.echo(f"→ {out / 'rounds.json'} names the best round's encoder")


def _maker(source: str, signal: str) -> Any:
    """Trains a reader that gives the signal by a preset's recipe on a round's examples."""
    from rag.config import recipe_of
    from rag.core.errors import ConfigError
    from rag.recipes import train
    from rag.rounds.signals import check_signal

    recipe = recipe_of(source)
    given = {"reader": ("extractive", "train"), "generator": ("generative", "train_files")}
    if recipe not in given:
        raise ConfigError(
            f"--train-reader {source}: recipe {recipe!r}, expected one of {', '.join(given)}",
            hint="give a preset or file whose first key is recipe: reader, or recipe: generator",
        )
    kind, files = given[recipe]
    check_signal(kind, signal, f"--train-reader {source}")
    return lambda examples, out: train(recipe, out, config=source, **{files: [str(examples)]})
