"""`rag retrieve`: many questions, results as DPR JSON or a TREC run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import (
    DATA,
    OPENING,
    OUTPUT,
    SEARCH,
    IndexDir,
    Limit,
    QuestionFile,
    QuestionFormat,
    adds_options,
    option,
)

_SEARCH = {name: option for name, option in OPENING.items() if name != "effort"}


@adds_options("opening", _SEARCH)
def retrieve(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[
        Path,
        option(
            *("--out", "-o"),
            help="*.json: DPR results; *.run or *.trec: a TREC run; *.jsonl: paths.",
            panel=OUTPUT,
        ),
    ],
    opening: dict[str, Any],
    top_k: Annotated[int, option(min=1, help="Hits per question.", panel=SEARCH)] = 100,
    format: QuestionFormat = "auto",
    batch_size: Annotated[int, option(min=1, help="Questions searched at once.", panel=SEARCH)] = 512,
    limit: Limit = None,
    regex: Annotated[
        bool, option("--regex", help="Answers are regular expressions (CuratedTREC).", panel=DATA)
    ] = False,
) -> None:
    """Search for many questions; writes DPR's results JSON, a TREC run, or MDR's paths, by extension."""
    from itertools import islice

    from rag.data.questions import read_questions
    from rag.eval.runs import extension_of, write_results
    from rag.pipeline import Pipeline

    extension_of(out)  # refused before anything is opened
    asked = list(islice(read_questions(questions, format=format), limit))
    pipeline = Pipeline.open(index, reads=False, **opening)
    write_results(pipeline, asked, out, top_k, batch_size=batch_size, regex=regex)
    typer.echo(f"{len(asked):,} questions × top {top_k} → {out}")
