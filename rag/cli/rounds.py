"""`rag rounds`: search, label or score what was retrieved, train, index, and again."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rag.cli.options import (
    DATA,
    READING,
    SEARCH,
    Assignments,
    From,
    Options,
    Out,
    ReaderSpec,
    RetrieverSpec,
    Threads,
    adds_options,
    config_source,
    option,
    options_of,
)
from rag.rounds.config import ColbertRoundsConfig, DistillRoundsConfig, RoundsConfig
from retrievers.negatives.settings import GuidanceSettings

_METHODS: dict[str, tuple[type[RoundsConfig], Options]] = {  # recipe → configuration, options of it alone
    "distill": (
        DistillRoundsConfig,
        {
            "reader": (ReaderSpec, None),
            **options_of(DistillRoundsConfig, "signal", panel=READING),
        },
    ),
    "colbert": (
        ColbertRoundsConfig,
        options_of(GuidanceSettings, "positives", "negatives", panel="Labels (--recipe colbert)"),
    ),
}
_OPTIONS = {
    **options_of(RoundsConfig, "held_out", "validation_fraction", panel=DATA),
    "retriever": (RetrieverSpec, "auto"),
    **options_of(RoundsConfig, "top_k", panel=SEARCH),
    **{name: kind for _, options in _METHODS.values() for name, kind in options.items()},
    **options_of(RoundsConfig, "rounds", "restart", "figure", panel="Rounds"),
}


@adds_options("settings", _OPTIONS)
def rounds(
    *,
    recipe: Annotated[
        Literal["distill", "colbert"],
        option(
            help="distill: a reader scores passages, a dense retriever learns the scores (DKRR and its kin); "
            "colbert: answers tell right passages from wrong ones, a ColBERT model learns these.",
            panel="Rounds",
        ),
    ],
    index: Annotated[
        Path, option(*("--index", "-i"), help="Index that the first round searches.", panel=DATA)
    ],
    questions: Annotated[
        str,
        option(
            *("--questions", "-q"),
            help="Questions with answers; gold passages are not needed.",
            panel=DATA,
        ),
    ],
    settings: dict[str, Any],
    from_: From = None,
    config: config_source(  # type: ignore[valid-type]
        "Training settings, a file or preset; default: distill-small or colbert-small, by recipe."
    ) = None,
    set_: Assignments = None,
    threads: Threads = None,
    out: Out,
) -> None:
    """Teach a retriever in rounds of searching, labelling and training, until one gains nothing beyond noise.

    Questions and answers are enough. --config and --set are those of `rag train distill` or `colbert`. A
    killed run goes on behind what is finished when the same command is given again.
    """
    from rag.commands import train_rounds
    from rag.config import parse_overrides
    from rag.core.errors import ConfigError
    from rag.core.log import setup_logging

    for other, (_, options) in _METHODS.items():
        unread = {name: settings.pop(name) for name in options if other != recipe}
        for name, value in unread.items():
            if value != options[name][1]:
                raise ConfigError(f"--{name.replace('_', '-')} is only read with --recipe {other}")
    setup_logging("INFO")
    training = {"question_encoder": from_, "threads": threads}
    training = {name: value for name, value in training.items() if value is not None}
    results = train_rounds(
        recipe, index, questions, out, config=config, training=training | parse_overrides(set_ or []),
        **settings,
    )  # fmt: skip
    from rag.rounds.rounds import table

    typer.echo("\n".join(table(results, settings["figure"])))
    typer.echo(f"→ {out / 'rounds.json'} names the best round's encoder")
