"""`rag mine`: training examples with hard negatives from an index."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import OPENING, SEARCH, Count, Options, QuestionFormat, options_of, some
from retrievers.negatives.settings import MiningSettings

_SETTINGS = Options(
    some(OPENING, "index_encoder")
    | options_of(MiningSettings, "source", panel=SEARCH)
    | options_of(
        MiningSettings,
        *("per_question", "margin", "weak_positives", "seed"),
        panel="Selection",
    )
)


def mine(
    index: str,
    questions: str,
    out: Path,
    settings: Annotated[dict[str, Any], _SETTINGS],
    ranks: str = "1:100",
    merge: Path | None = None,
    format: QuestionFormat = "auto",
    split: str | None = None,
    limit: Count | None = None,
    sample: Count | None = None,
) -> None:
    """Mine hard negatives; needs questions with gold passages, or with answers alone.

    Run the same command again to continue a killed run where it stopped.

    Args:
        out: DPR training JSON; a report goes beside it.
        ranks: Ranks to take candidates from, first:last.
        merge: Training file of an earlier round, to be merged with the result.
    """
    from rag.commands import mine as run
    from rag.core.log import setup_logging

    setup_logging("INFO")
    report = run(
        index, questions, out, ranks=ranks, format=format, split=split, limit=limit, sample=sample,
        merge=merge, **settings,
    )  # fmt: skip
    typer.echo("\n".join([*report.lines(), f"→ {out}", f"train with it: rag train dpr --train {out} …"]))
