"""`rag ask`: one question, answers with evidence."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from rag.cli.options import OPENING, IndexDir, adds_options
from rag.cli.show import format_answer_set


@adds_options("opening", OPENING)
def ask(
    questions: Annotated[list[str], typer.Argument(help="The question; several are answered in turn.")],
    index: IndexDir,
    opening: dict[str, Any],
    top_k: Annotated[int, typer.Option(help="Passages to read.")] = 20,
    n_best: Annotated[int, typer.Option(help="Answers to show at most.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a question.")] = False,
) -> None:
    """Ask a question; prints answers with title, highlighted evidence and confidence."""
    from rag.pipeline import Pipeline, check_questions

    check_questions(questions, top_k, n_best)  # before models are loaded
    results = Pipeline.open(index, **opening).ask(questions, top_k=top_k, n_best=n_best)
    for result in results:
        if as_json:
            typer.echo(json.dumps(result.to_json(), ensure_ascii=False))
        else:
            typer.echo(format_answer_set(result.to_json(), colour=sys.stdout.isatty()))
