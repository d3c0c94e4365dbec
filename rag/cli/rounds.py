"""`rag rounds`: search, label or score what was retrieved, train, index, and again."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rag.cli.options import DATA, OPENING, READING, SEARCH, Count, Options, options_of, some
from rag.rounds.config import DistillRoundsConfig, RoundsConfig
from retrievers.negatives.settings import GuidanceSettings

_METHODS = {  # recipe → options of it alone
    "distill": some(OPENING, "reader") | options_of(DistillRoundsConfig, "signal", panel=READING),
    "colbert": options_of(GuidanceSettings, "positives", "negatives", panel="Labels (--recipe colbert)"),
}
_OPTIONS = Options(
    options_of(RoundsConfig, "held_out", "validation_fraction", panel=DATA)
    | some(OPENING, "retriever")
    | options_of(RoundsConfig, "top_k", panel=SEARCH)
    | _METHODS["distill"]
    | _METHODS["colbert"]
    | options_of(RoundsConfig, "rounds", "restart", "figure", panel="Rounds")
)


def rounds(
    *,
    recipe: Literal["distill", "colbert"],
    index: str,
    questions: str,
    settings: Annotated[dict[str, Any], _OPTIONS],
    from_: str | None = None,
    config: str | None = None,
    set_: list[str] | None = None,
    threads: Count | None = None,
    out: Path,
) -> None:
    """Teach a retriever in rounds of searching, labelling and training, until one gains nothing beyond noise.

    Questions and answers are enough. --config and --set are those of `rag train distill` or `colbert`. A
    killed run goes on behind what is finished when the same command is given again.

    Args:
        recipe: distill: a reader scores passages, a dense retriever learns the scores (DKRR and its kin);
            colbert: answers tell right passages from wrong ones, a ColBERT model learns these.
        index: Index that the first round searches.
        questions: Questions with answers; gold passages are not needed.
        config: Training settings, a file or preset; default: distill-small or colbert-small, by recipe.
        out: Folder of the run; an unfinished one is resumed.
    """
    from rag.commands import train_rounds
    from rag.config import parse_overrides
    from rag.core.errors import ConfigError
    from rag.core.log import setup_logging

    for other, options in _METHODS.items():
        for name, (_, default) in options.items():
            if other != recipe and settings.pop(name) != default:
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
