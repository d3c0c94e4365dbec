"""`rag retrieve`: many questions, results as DPR JSON or a TREC run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import (
    DATA,
    OPENING,
    SEARCH,
    FilterSpec,
    IndexDir,
    Limit,
    QuestionFile,
    QuestionFormat,
    adds_options,
    option,
    out_option,
)

_SEARCH = {name: option for name, option in OPENING.items() if name != "effort"}


@adds_options("opening", _SEARCH)
def retrieve(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[
        Path,
        out_option("*.json: DPR results; *.run or *.trec: a TREC run; *.jsonl: paths."),
    ],
    opening: dict[str, Any],
    top_k: Annotated[int, option(min=1, help="Hits per question.", panel=SEARCH)] = 100,
    filter: FilterSpec = None,
    format: QuestionFormat = "auto",
    batch_size: Annotated[int, option(min=1, help="Questions searched at once.", panel=SEARCH)] = 512,
    limit: Limit = None,
    regex: Annotated[
        bool, option("--regex", help="Answers are regular expressions (CuratedTREC).", panel=DATA)
    ] = False,
) -> None:
    """Search for many questions; writes DPR's results JSON, a TREC run, or MDR's paths, by extension."""
    from rag.commands import retrieve as run
    from rag.data.filters import Filter

    count = run(
        index, questions, out, top_k=top_k, format=format, batch_size=batch_size, limit=limit, regex=regex,
        filter=Filter.parse_options(filter or ()), **opening,
    )  # fmt: skip
    typer.echo(f"{count:,} questions × top {top_k} → {out}")
