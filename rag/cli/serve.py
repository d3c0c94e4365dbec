"""`rag serve`: answers over HTTP, with a web page."""

from __future__ import annotations

from typing import Annotated, Any

from rag.cli.options import DATA, OPENING, adds_options, option


@adds_options("opening", {name: (kind, None) for name, (kind, _) in OPENING.items()})
def serve(
    opening: dict[str, Any],
    index: Annotated[
        str | None,
        option(*("--index", "-i"), help="Directory written by `rag index`, or RAG_SERVE_INDEX.", panel=DATA),
    ] = None,
    host: Annotated[
        str | None, option(help="Address to listen on; default 127.0.0.1.", panel="Address")
    ] = None,
    port: Annotated[
        int | None, option(min=0, max=65535, help="Port to listen on; default 8000.", panel="Address")
    ] = None,
) -> None:
    """Answer over HTTP. Limits, keys and batching are set by RAG_SERVE_… variables (see the README)."""
    from serve.run import run_server
    from serve.settings import load_settings

    given = {"index": index, "host": host, "port": port, **opening}
    run_server(load_settings(**{name: value for name, value in given.items() if value is not None}))
