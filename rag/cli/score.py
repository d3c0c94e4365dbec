"""`rag score`: score every candidate passage of training examples with a reader."""

from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge

from rag.cli.options import OPENING, Count, some
from rag.rounds.config import SignalName


def score(
    examples: Path,
    out: Path,
    signal: SignalName = "span-likelihood",
    reader: str | None = None,
    read: Annotated[int, Ge(2)] | None = None,
    limit: Count | None = None,
    *,
    models: Annotated[dict[str, Any], some(OPENING, "precision")],
) -> None:
    """Score each question's passages with a reader; `rag train distill` learns from the scores.

    Run the same command again to continue a killed run where it stopped.

    Args:
        examples: Results of `rag retrieve`, `rag mine`'s or FiD's file.
        out: File for the examples with scores as targets; a report is written beside it.
        signal: attention (generative readers); likelihood (these and language
            models); span-likelihood (extractive); relevance (cross-encoder).
        reader: Reader or cross-encoder; default: the reader in the package.
        read: Number of candidates to score per question, from the first; default: all.
    """
    from rag.core.log import setup_logging
    from rag.rounds.scoring import score_examples
    from rag.rounds.signals import Judge

    setup_logging("INFO")
    report = score_examples(examples, out, Judge.open(reader, signal, **models), depth=read, limit=limit)
    typer.echo("\n".join(report.lines()) + f"\n→ {out}\ntrain with it: rag train distill --train {out} …")
