"""`rag compare`: evaluated systems on the same questions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def compare(
    results: list[Path],
    /,
    figures: Sequence[str] = (),
    all_pairs: bool = False,
    report: Path | None = None,
) -> None:
    """Compare systems: paired tests, Holm's correction, wins, ties and losses.

    Args:
        results: Two or more folders written by `rag evaluate`.
        figures: Figures to compare; default: the main ones.
        all_pairs: Compare every pair of systems, instead of each with the first.
        report: Write a side-by-side HTML page.
    """
    from rag.eval.api import compare as run

    typer.echo(comparison_table(run(results, figures or None, all_pairs=all_pairs, report=report)))
    if report is not None:
        typer.echo(f"written: {report}")


def comparison_table(compared: Sequence[Any]) -> str:
    """The comparisons as a table for the terminal."""
    from rag.core.views import text_table
    from rag.eval.labels import NATS

    columns = ["figure", "A", "B", "A", "B", "B-A", "p", "p Holm", "won/tied/lost"]
    rows = []
    for row in compared:
        test = row.result
        unit = 1 if row.figure in NATS else 100
        cells = [row.figure, row.a, row.b, f"{unit * row.value_a:.2f}", f"{unit * row.value_b:.2f}"]
        cells += [f"{unit * (row.value_b - row.value_a):+.2f}", _p(test.p_value), _p(row.p_holm)]
        cells.append(f"{test.wins}/{test.ties}/{test.losses}")
        rows.append(cells)
    return "\n".join(text_table(columns, rows))


def _p(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"
