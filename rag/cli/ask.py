"""`rag ask`: one question, answers with evidence."""

import json
import sys
from typing import Annotated, Any

import typer

from rag.cli.options import OPENING, OUTPUT, FilterSpec, IndexDir, Read, adds_options, option
from rag.cli.show import format_answer_set


@adds_options("opening", OPENING)
def ask(
    questions: Annotated[list[str], typer.Argument(help="The question; several are answered in turn.")],
    index: IndexDir,
    opening: dict[str, Any],
    read: Read = 20,
    filter: FilterSpec = None,
    n_best: Annotated[int, option(min=1, help="Answers to show at most.", panel=OUTPUT)] = 3,
    as_json: Annotated[
        bool, option("--json", help="Print one JSON object per question.", panel=OUTPUT)
    ] = False,
) -> None:
    """Ask a question; prints answers with title, highlighted evidence and confidence."""
    from rag.data.filters import Filter
    from rag.data.question_checks import check_questions

    check_questions(questions, read, n_best)  # before models are loaded
    chosen = Filter.parse_options(filter or ())
    from rag.pipeline import Pipeline

    pipeline = Pipeline.open(index, **opening)
    for question in questions:  # one by one: each is shown at once, with its own time
        result = pipeline.ask(question, top_k=read, n_best=n_best, filter=chosen)
        if as_json:
            typer.echo(json.dumps(result.to_json(), ensure_ascii=False))
        else:
            typer.echo(format_answer_set(result.to_json(), colour=sys.stdout.isatty()))
