"""`rag mine`: training examples with hard negatives from an index."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import (
    DATA,
    OUTPUT,
    SEARCH,
    IndexDir,
    IndexEncoder,
    Limit,
    QuestionFile,
    QuestionFormat,
    adds_options,
    option,
    options_of,
    out_option,
)
from retrievers.negatives.settings import MiningSettings

_SETTINGS = {
    **options_of(MiningSettings, "source", panel=SEARCH),
    **options_of(
        MiningSettings,
        *("per_question", "margin", "weak_positives", "seed"),
        panel="Selection",
    ),
}


@adds_options("settings", _SETTINGS)
def mine(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[Path, out_option("DPR training JSON; a report goes beside it.")],
    settings: dict[str, Any],
    ranks: Annotated[str, option(help="Ranks to take candidates from, first:last.", panel=SEARCH)] = "1:100",
    index_encoder: IndexEncoder = None,
    merge: Annotated[
        Path | None,
        option(help="Training file of an earlier round, to be merged with the result.", panel=OUTPUT),
    ] = None,
    format: QuestionFormat = "auto",
    split: Annotated[str | None, option(help="Split of a BEIR folder, such as dev.", panel=DATA)] = None,
    limit: Limit = None,
    sample: Annotated[int | None, option(min=1, help="A random sample of so many.", panel=DATA)] = None,
) -> None:
    """Mine hard negatives; needs questions with gold passages, or with answers alone.

    Run the same command again to continue a killed run where it stopped.
    """
    from rag.commands import mine as run
    from rag.core.log import setup_logging

    setup_logging("INFO")
    report = run(
        index, questions, out, ranks=ranks, index_encoder=index_encoder, format=format, split=split,
        limit=limit, sample=sample, merge=merge, **settings,
    )  # fmt: skip
    typer.echo("\n".join(report.lines()) + f"\n→ {out}\ntrain with it: rag train dpr --train {out} …")
