"""`rag serve`: answers over HTTP, with a web page."""

from __future__ import annotations

from typing import Annotated

import typer

from rag.cli.options import EffortSpec, EncoderSpec, FusionSpec, ReaderSpec, RerankSpec
from retrievers.open import kind_names


def serve(
    index: Annotated[
        str | None,
        typer.Option("--index", "-i", help="Directory written by `rag index`, or RAG_SERVE_INDEX."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; default 8000.")] = None,
    retriever: Annotated[str | None, typer.Option(help=f"{kind_names()}; options after a colon.")] = None,
    fusion: FusionSpec = None,
    rerank: RerankSpec = None,
    reader: ReaderSpec = None,
    effort: EffortSpec = None,
    encoder: EncoderSpec = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")] = None,
) -> None:
    """Answer over HTTP. Limits, keys and batching are set by RAG_SERVE_… variables (see the README)."""
    from serve.run import run_server
    from serve.settings import load_settings

    given = {
        "index": index, "host": host, "port": port, "retriever": retriever, "fusion": fusion,
        "rerank": rerank, "reader": reader, "encoder": encoder, "precision": precision, "effort": effort,
    }  # fmt: skip
    run_server(load_settings(**{name: value for name, value in given.items() if value is not None}))
