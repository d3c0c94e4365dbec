"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

FusionSpec = Annotated[
    str | None, typer.Option(help='Of hybrid retrieval: "minmax:DENSE,BM25", "raw:…" or "rrf60:…".')
]
