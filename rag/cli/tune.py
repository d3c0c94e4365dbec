"""`rag tune confidence`: fit a reader's confidence to a corpus."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.lazy import group_of
from rag.cli.options import DATA, Count, Opening, QuestionFormat, command_of, options_of
from rag.eval.settings import EvaluationSettings


def confidence(
    index: str,
    questions: str,
    out: Path,
    drawn: Annotated[dict[str, Any], options_of(EvaluationSettings, "limit", "sample", "seed", panel=DATA)],
    opening: Opening,
    read: Count = 20,
    format: QuestionFormat = "auto",
) -> None:
    """Fit the reader's confidence to a corpus, from about 50 questions, some of which it does not answer.

    Args:
        out: Folder for the reader with its new confidence.
    """
    from rag.config import load_config
    from rag.core.views import text_table
    from rag.eval.api import fit_confidence

    settings = load_config(EvaluationSettings, overrides={**drawn, "read": read})
    tuning = fit_confidence(index, questions, out, format=format, settings=settings, **opening)
    typer.echo(
        f"{tuning.n:,} questions, {tuning.unanswerable:,} of them without an answer in what was retrieved"
    )
    figures = {"before": tuning.before, "after, cross-validated": tuning.after}
    rows = [(name, f"{it.ece:.3f}", f"{it.hidden:.1%}", f"{it.refused:.1%}") for name, it in figures.items()]
    typer.echo("\n".join(text_table(("", "ECE", "right, hidden", "no answer, refused"), rows)))
    if not tuning.unanswerable:
        typer.echo('"no answer" stays as it was: give questions too that the documents do not answer')
    if tuning.after.ece > tuning.before.ece:
        typer.echo("the fit makes the confidence no better: keep the reader as it is, or give more questions")
    typer.echo(f"reader → {out}\nuse it: --reader {out}")


app = group_of(
    "Fit the reader's confidence to a corpus.",
    {"confidence": ("Commands", "Fit the reader's confidence to a corpus, from about 50 questions.")},
    lambda name: command_of(name, confidence),
    removed={"fusion": "`rag evaluate` takes several --fusion and compares them"},
)
