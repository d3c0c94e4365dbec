"""`rag serve`: answers over HTTP, with a web page."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rag.cli.options import OPENING, adds_options


@adds_options("opening", {name: (kind, None) for name, (kind, _) in OPENING.items()})
def serve(
    opening: dict[str, Any],
    index: Annotated[
        str | None,
        typer.Option("--index", "-i", help="Directory written by `rag index`, or RAG_SERVE_INDEX."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; default 8000.")] = None,
) -> None:
    """Answer over HTTP. Limits, keys and batching are set by RAG_SERVE_… variables (see the README)."""
    from serve.run import run_server
    from serve.settings import load_settings

    given = {"index": index, "host": host, "port": port, **opening}
    run_server(load_settings(**{name: value for name, value in given.items() if value is not None}))
