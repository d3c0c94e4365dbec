"""`rag score`: score every candidate passage of training examples with a reader."""

from pathlib import Path
from typing import Annotated

import typer

from rag.cli.options import DATA, READING, Limit, Precision, option, out_option
from rag.rounds.config import SignalName


def score(
    examples: Annotated[
        Path,
        option(
            *("--examples", "-e"), help="Results of `rag retrieve`, `rag mine`'s or FiD's file.", panel=DATA
        ),
    ],
    out: Annotated[
        Path,
        out_option("File for the examples with scores as targets; a report is written beside it."),
    ],
    signal: Annotated[
        SignalName,
        option(
            help="attention (generative readers); likelihood (these and language models); span-likelihood "
            "(extractive); relevance (cross-encoder).",
            panel=READING,
        ),
    ] = "span-likelihood",
    reader: Annotated[
        str | None,
        option(help="Reader or cross-encoder; default: the reader in the package.", panel=READING),
    ] = None,
    read: Annotated[
        int | None,
        option(
            min=2,
            help="Number of candidates to score per question, from the first; default: all.",
            panel=READING,
        ),
    ] = None,
    limit: Limit = None,
    precision: Precision = "auto",
) -> None:
    """Score each question's passages with a reader; `rag train distill` learns from the scores.

    Run the same command again to continue a killed run where it stopped.
    """
    from rag.core.log import setup_logging
    from rag.rounds.scoring import score_examples
    from rag.rounds.signals import Judge

    setup_logging("INFO")
    judge = Judge.open(reader, signal, precision=precision)
    report = score_examples(examples, out, judge, depth=read, limit=limit)
    typer.echo("\n".join(report.lines()) + f"\n→ {out}\ntrain with it: rag train distill --train {out} …")
