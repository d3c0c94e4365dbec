"""`rag convert`: between the field's file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag.data.files.convert import FORMATS


def convert(
    source: Annotated[Path, typer.Argument(help="File or folder to read.")],
    target: Annotated[Path, typer.Argument(help="File or folder to write.")],
    from_: Annotated[str, typer.Option("--from", help=f"Format of the source: {', '.join(FORMATS)}.")],
    to: Annotated[str, typer.Option("--to", help="Format of the target, one of these.")],
    questions: Annotated[
        Path | None, typer.Option(help="Question set that gives question texts and answers by id.")
    ] = None,
    index: Annotated[str | None, typer.Option(help="Index that gives passage texts by id.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a conversion that loses anything.")
    ] = False,
) -> None:
    """Convert between DPR, FiD, pyserini, TREC, KILT, BEIR, HotpotQA, SQuAD and ColBERT files."""
    from contextlib import ExitStack

    from indexers.index import Index
    from rag.data.files.convert import convert as run
    from rag.data.questions import read_questions

    known = None if questions is None else {item.id: item for item in read_questions(questions)}
    with ExitStack() as stack:
        lookup = None if index is None else stack.enter_context(Index.open(index)).passages.find
        report = run(source, from_, target, to, questions=known, passages=lookup, strict=strict)
    typer.echo(f"{report.summary()} → {target}")
