"""`rag distill`: rounds of retrieving, reading, scoring and training, from questions and answers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import EncoderSpec, ReaderSpec, RetrieverSpec
from rag.cli.recipe import Assignments, ConfigSource, Encoder, Out, Threads, load_recipe


def distill(
    index: Annotated[Path, typer.Option("--index", "-i", help="What the first round searches.")],
    questions: Annotated[
        str, typer.Option("--questions", "-q", help="Questions with answers; gold passages are not needed.")
    ],
    out: Out,
    held_out: Annotated[
        str | None,
        typer.Option(help="Questions that judge each round; default: a tenth of --questions."),
    ] = None,
    signal: Annotated[
        str, typer.Option(help="What is learnt of the reader, see `rag score`.")
    ] = "span-likelihood",
    reader: ReaderSpec = None,
    train_reader: Annotated[
        str | None,
        typer.Option(help="Train one anew in every round: a preset or file of recipe reader or generator."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="At most.")] = 4,
    top_k: Annotated[int, typer.Option(min=2, help="Passages retrieved and scored a question.")] = 100,
    figure: Annotated[
        str, typer.Option(help="Held-out figure that judges: top1, top5, top20, top100.")
    ] = "top20",
    profile: Annotated[
        str, typer.Option(help="Rules of answers: nq_open, squad, trec_search, …")
    ] = "nq_open",
    retriever: RetrieverSpec = "auto",
    index_encoder: EncoderSpec = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Train every round's retriever from the first encoder.")
    ] = False,
    train_questions: Annotated[
        int | None, typer.Option(min=1, help="Only the first N training questions.")
    ] = None,
    encoder: Encoder = None,
    config: ConfigSource = "distill-small",
    set_: Assignments = None,
    threads: Threads = None,
) -> None:
    """Teach a retriever from a reader in rounds, until a round gains nothing beyond noise (DKRR and its kin).

    --config and --set are those of `rag train distill`. A killed run goes on after its last finished stage,
    and inside the stages that take long, when the same command is given again.
    """
    from rag.joint.rounds import RoundsConfig, run_rounds, table
    from rag.recipes import read_config

    training = load_recipe(
        "distill", config, set_, out=out, train_files=[out / "scored.json"], question_encoder=encoder,
        threads=threads,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "out": out, "index": index, "questions": questions, "held_out": held_out, "signal": signal,
        "reader": reader, "rounds": rounds, "top_k": top_k, "figure": figure, "profile": profile,
        "retriever": retriever, "encoder": index_encoder, "restart": restart,
        "train_questions": train_questions or 0,
    }  # fmt: skip
    chosen = read_config(RoundsConfig, None, settings)
    make = None if train_reader is None else _maker(train_reader)
    results = run_rounds(chosen, training, make_reader=make)
    typer.echo("\n".join(table(results, chosen.figure)))
    typer.echo(f"→ {out / 'rounds.json'} names the best round's encoder")


def _maker(source: str) -> Any:
    """Trains a reader by a preset's recipe on a round's examples."""
    from rag.config import recipe_of
    from rag.core.errors import ConfigError
    from rag.recipes import train

    recipe = recipe_of(source)
    given = {"reader": "train", "generator": "train_files"}
    if recipe not in given:
        raise ConfigError(
            f"--train-reader {source}: recipe {recipe!r}, expected one of {', '.join(given)}",
            hint="give a preset or file whose first key is recipe: reader, or recipe: generator",
        )
    return lambda examples, out: train(recipe, out, config=source, **{given[recipe]: [str(examples)]})
