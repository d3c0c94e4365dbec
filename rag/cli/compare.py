"""`rag compare`: evaluated systems on the same questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag.cli.options import OUTPUT, option

if TYPE_CHECKING:
    from rag.eval.compare import Comparison


def compare(
    results: Annotated[list[Path], typer.Argument(help="Two or more folders written by `rag evaluate`.")],
    figures: Annotated[
        str | None, typer.Option(help="Figures to compare, separated by commas; default: the main ones.")
    ] = None,
    all_pairs: Annotated[
        bool,
        typer.Option("--all-pairs", help="Compare every pair of systems, instead of each with the first."),
    ] = False,
    margin: Annotated[
        float | None,
        typer.Option(
            help="Test that B loses less than so many points. Results come in pairs A B, each over other "
            "questions, and are pooled; p worse: p-value against a loss of so much or more."
        ),
    ] = None,
    report: Annotated[Path | None, option(help="Write a side-by-side HTML page.", panel=OUTPUT)] = None,
    markdown: Annotated[Path | None, option(help="Write the tables as Markdown.", panel=OUTPUT)] = None,
) -> None:
    """Compare systems: paired tests, Holm's correction, wins, ties and losses."""
    from rag.eval.api import compare as run
    from rag.eval.report_labels import NATS

    chosen = [name.strip() for name in figures.split(",")] if figures else None
    share = None if margin is None else margin / 100
    compared = run(results, chosen, all_pairs=all_pairs, margin=share, report=report, markdown=markdown)
    wide = max(len(name) for row in compared for name in (row.a, row.b))
    head = f"{'figure':<16} {'A':<{wide}} {'B':<{wide}} {'A':>7} {'B':>7} {'B-A':>7}  {'p':>8} {'p Holm':>8}"
    typer.echo(
        head + ("  won/tied/lost" if margin is None else f"  {'p worse':>8}  95 % of B-A, won/tied/lost")
    )
    for row in compared:
        test = row.result
        unit = 1 if row.figure in NATS else 100
        change = unit * (row.value_b - row.value_a)
        typer.echo(
            f"{row.figure:<16} {row.a:<{wide}} {row.b:<{wide}} "
            f"{unit * row.value_a:7.2f} {unit * row.value_b:7.2f} {change:+7.2f}  "
            f"{_p(test.p_value)} {_p(row.p_holm)}  {_worse(row)}{test.wins}/{test.ties}/{test.losses}"
        )
    for written in filter(None, (report, markdown)):
        typer.echo(f"written: {written}")


def _worse(row: Comparison) -> str:
    if row.p_worse is None:
        return ""
    difference = row.result.difference
    return f"{_p(row.p_worse)}  [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}], "


def _p(value: float) -> str:
    return f"{'<0.0001' if value < 0.0001 else format(value, '.4f'):>8}"
