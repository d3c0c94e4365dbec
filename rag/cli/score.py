"""`rag score`: a reader's verdict on every candidate of training examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag.cli.options import Precision


def score(
    examples: Annotated[
        Path, typer.Option("--examples", "-e", help="Results of `rag retrieve`, `rag mine`'s or FiD's file.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The same with targets; a report goes beside it.")],
    signal: Annotated[
        str,
        typer.Option(
            help="attention, attention-norm, likelihood, leave-one-out (generative readers); span-likelihood "
            "(extractive); relevance (extractive, cross-encoder)."
        ),
    ] = "span-likelihood",
    reader: Annotated[
        str | None, typer.Option(help="Reader or cross-encoder; default: the reader in the package.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=2, help="Only a question's first N candidates; default: all.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions.")] = None,
    precision: Precision = "auto",
) -> None:
    """Score each question's passages by what a reader makes of them; `rag train distill` learns from it.

    A killed run goes on where it was when the same command is given again.
    """
    from rag.core.log import setup_logging
    from rag.rounds.scoring import score_examples
    from rag.rounds.signals import Judge

    setup_logging("INFO")
    judge = Judge.open(reader, signal, precision=precision)
    report = score_examples(examples, out, judge, depth=depth, limit=limit)
    typer.echo("\n".join(report.lines()) + f"\n→ {out}\ntrain with it: rag train distill --train {out} …")
