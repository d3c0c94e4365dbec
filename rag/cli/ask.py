"""`rag ask`: one question, answers with evidence."""

import json
import sys

import typer

from rag.cli.options import Count, Opening
from rag.cli.show import format_answer_set


def ask(
    questions: list[str],
    /,
    index: str,
    opening: Opening,
    read: Count = 20,
    filter: list[str] | None = None,
    n_best: Count = 3,
    as_json: bool = False,
) -> None:
    """Ask a question; prints answers with title, highlighted evidence and confidence.

    Args:
        questions: The question; several are answered in turn.
        n_best: Answers to show at most.
        as_json: Print one JSON object per question.
    """
    from rag.data.filters import Filter
    from rag.data.question_checks import check_questions

    check_questions(questions, read, n_best)  # before models are loaded
    chosen = Filter.parse_options(filter or ())
    from rag.pipeline import Pipeline

    pipeline = Pipeline.open(index, **opening)
    for question in questions:  # one by one: each is shown at once, with its own time
        result = pipeline.ask(question, top_k=read, n_best=n_best, filter=chosen).to_json()
        line = json.dumps(result, ensure_ascii=False) if as_json else ""
        typer.echo(line or format_answer_set(result, colour=sys.stdout.isatty()))
