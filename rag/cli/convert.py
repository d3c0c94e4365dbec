"""`rag convert`: between the field's file formats."""

from pathlib import Path
from typing import Annotated

import typer

from rag.cli.options import DATA, option
from rag.data.choices import FileFormat, WrittenFormat


def convert(
    source: Annotated[Path, typer.Argument(help="File or folder to read.")],
    target: Annotated[Path, typer.Argument(help="File or folder to write.")],
    *,
    to: Annotated[WrittenFormat, option("--to", help="Format of the target.", panel="Formats")],
    from_: Annotated[
        FileFormat | None,
        option("--from", help="Format of the source; default: recognised from its content.", panel="Formats"),
    ] = None,
    questions: Annotated[
        Path | None,
        option(help="Question set that gives question texts and answers by id.", panel=DATA),
    ] = None,
    index: Annotated[str | None, option(help="Index that gives passage texts by id.", panel=DATA)] = None,
    strict: Annotated[
        bool, option("--strict", help="Refuse a conversion that loses anything.", panel="Formats")
    ] = False,
) -> None:
    """Convert to DPR, FiD, NQ-open, TREC and BEIR files, also from pyserini, ColBERT and question sets."""
    from contextlib import ExitStack

    from indexers.index import Index
    from rag.data.files.convert import convert as run
    from rag.data.files.convert import guess_format
    from rag.data.questions import read_questions

    found = from_ or guess_format(source)
    known = None if questions is None else {item.id: item for item in read_questions(questions)}
    with ExitStack() as stack:
        lookup = None if index is None else stack.enter_context(Index.open(index)).passages.find
        report = run(source, found, target, to, questions=known, passages=lookup, strict=strict)
    typer.echo(f"{source} is read as {found}: {report.summary()} → {target}")
