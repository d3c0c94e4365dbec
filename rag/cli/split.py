"""`rag split`: documents → a file of passages, so that corpora split in different ways can be pooled."""

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import CORPUS, DATA, Corpus, adds_options, option, out_option


@adds_options("reading", CORPUS)
def split(
    corpus: Corpus,
    *,
    reading: dict[str, Any],
    documents: Annotated[
        int | None,
        option(min=1, help="Number of documents to split, from the first; default: all.", panel=DATA),
    ] = None,
    out: Annotated[
        Path,
        out_option("File to write: .jsonl or .tsv (as psgs_w100), .gz after it."),
    ],
) -> None:
    """Split documents into passages and write them to one file, for `rag index … --split none`."""
    from rag.core.log import setup_logging
    from rag.data.corpus import ReadReport, read_documents
    from rag.data.document_options import read_and_split
    from rag.data.files.results import write_passages
    from rag.data.split import split_documents

    setup_logging("WARNING")
    read_options, split_options = read_and_split(reading)
    report = ReadReport()
    source = read_documents(corpus, format=reading["format"], options=read_options, report=report)
    n_passages = write_passages(out, split_documents(islice(source, documents), split_options))
    listed = documents is not None  # else reading has come to its end, and listed the problems itself
    typer.echo(report.summary(listed=listed))
    typer.echo(f"{n_passages:,} passages → {out}")
