"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from retrievers.open import kind_names

RetrieverSpec = Annotated[
    str, typer.Option(help=f"{kind_names()}; options follow a colon, as in hybrid:depth=500.")
]
FusionSpec = Annotated[
    str | None, typer.Option(help='Of hybrid retrieval: "minmax:DENSE,BM25", "raw:…" or "rrf60:…".')
]
EncoderSpec = Annotated[str | None, typer.Option(help="Folder of the index's encoder, if it moved.")]
ReaderSpec = Annotated[
    str | None, typer.Option(help="Folder or hub name of a reader; default: the shipped one.")
]
Precision = Annotated[str, typer.Option(help="auto, fp32 or bf16.")]
IndexKindSpec = Annotated[str, typer.Option(help="What can be searched: dense, bm25 or hybrid (both).")]
