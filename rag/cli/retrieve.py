"""`rag retrieve`: many questions, results as DPR JSON or a TREC run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import OPENING, Count, QuestionFormat, some


def retrieve(
    index: str,
    questions: str,
    out: Path,
    opening: Annotated[dict[str, Any], some(OPENING, without=("effort",))],
    top_k: Count = 100,
    filter: list[str] | None = None,
    format: QuestionFormat = "auto",
    batch_size: Count = 512,
    limit: Count | None = None,
    regex: bool = False,
) -> None:
    """Search for many questions; writes DPR's results JSON, a TREC run, or MDR's paths, by extension.

    Args:
        out: *.json: DPR results; *.run or *.trec: a TREC run; *.jsonl: paths.
        top_k: Hits per question.
        batch_size: Questions searched at once.
        regex: Answers are regular expressions (CuratedTREC).
    """
    from rag.commands import retrieve as run
    from rag.data.filters import Filter

    count = run(
        index, questions, out, top_k=top_k, format=format, batch_size=batch_size, limit=limit, regex=regex,
        filter=Filter.parse_options(filter or ()), **opening,
    )  # fmt: skip
    typer.echo(f"{count:,} questions × top {top_k} → {out}")
