"""`rag split`: documents → a file of passages, so that corpora split in different ways can be pooled."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer


def split(
    corpus: Annotated[
        list[str], typer.Argument(help='Files, folders, patterns, hf:owner/name, or "-" for stdin.')
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .jsonl or .tsv (as psgs_w100), .gz after it.")
    ],
    mode: Annotated[str, typer.Option("--split", help="words100, sentences or none.")] = "words100",
    words: Annotated[int, typer.Option(help="Words a passage, for --split words100.")] = 100,
    wrap: Annotated[bool, typer.Option(help="Fill the last passage with the document's first words.")] = True,
    passage_ids: Annotated[
        str, typer.Option(help="document (doc-0, doc-1, …) or integer (1, 2, …).")
    ] = "document",
    documents: Annotated[
        int | None, typer.Option(min=1, help="Only the first N documents; default: all.")
    ] = None,
    format: Annotated[str, typer.Option(help="Corpus format; auto looks at names and first bytes.")] = "auto",
    max_bad_share: Annotated[float, typer.Option(help="Highest tolerated share of bad records.")] = 0.01,
) -> None:
    """Split documents into passages and write them to one file, for `rag index … --split none`."""
    from rag.data.corpus import ReadOptions, ReadReport, read_documents
    from rag.data.files.passage_files import write_passages
    from rag.data.split import SplitOptions, split_documents

    options = SplitOptions(mode=mode, words=words, wrap=wrap, ids=passage_ids)
    report = ReadReport()
    source = read_documents(
        corpus, format=format, options=ReadOptions(max_bad_share=max_bad_share), report=report
    )
    n_passages = write_passages(out, split_documents(islice(source, documents), options))
    typer.echo(report.summary())
    typer.echo(f"{n_passages:,} passages → {out}")
