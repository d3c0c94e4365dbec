"""`rag split`: documents → a file of passages, so that corpora split in different ways can be pooled."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from rag.cli.options import (
    DATA,
    OUTPUT,
    Corpus,
    CorpusFormat,
    DocumentTimeout,
    Encoding,
    IdField,
    MaxBadShare,
    MaxPages,
    PassageIds,
    Split,
    Strict,
    TextField,
    TitleField,
    Words,
    Wrap,
    option,
)


def split(
    corpus: Corpus,
    *,
    format: CorpusFormat = "auto",
    id_field: IdField = None,
    title_field: TitleField = None,
    text_field: TextField = None,
    encoding: Encoding = "utf-8",
    max_bad_share: MaxBadShare = 0.01,
    strict: Strict = False,
    max_pages: MaxPages = 5_000,
    document_timeout: DocumentTimeout = 60.0,
    documents: Annotated[
        int | None, option(min=1, help="Only the first so many documents; default: all.", panel=DATA)
    ] = None,
    mode: Split = "auto",
    words: Words = 100,
    wrap: Wrap = True,
    passage_ids: PassageIds = "document",
    out: Annotated[
        Path,
        option(
            *("--out", "-o"), help="File to write: .jsonl or .tsv (as psgs_w100), .gz after it.", panel=OUTPUT
        ),
    ],
) -> None:
    """Split documents into passages and write them to one file, for `rag index … --split none`."""
    from rag.data.corpus import ReadOptions, ReadReport, read_documents
    from rag.data.documents.limits import Limits
    from rag.data.documents.worker import cache_folder
    from rag.data.files.results import write_passages
    from rag.data.split import SplitOptions, split_documents

    options = SplitOptions(mode=mode, words=words, wrap=wrap, ids=passage_ids)
    report = ReadReport()
    reading = ReadOptions(
        *(id_field, title_field, text_field), encoding=encoding, max_bad_share=max_bad_share, strict=strict,
        limits=Limits(max_pages=max_pages, timeout_s=document_timeout), cache=cache_folder(),
    )  # fmt: skip
    source = read_documents(corpus, format=format, options=reading, report=report)
    n_passages = write_passages(out, split_documents(islice(source, documents), options))
    typer.echo(report.summary())
    typer.echo(f"{n_passages:,} passages → {out}")
