"""`rag serve`: answers over HTTP, with a web page."""

from typing import Annotated, Any

from rag.cli.options import DATA, OPENING, adds_options, option


@adds_options("opening", {name: (kind, None) for name, (kind, _) in OPENING.items()})
def serve(
    opening: dict[str, Any],
    index: Annotated[
        list[str] | None,
        option(
            *("--index", "-i"),
            help="Folder of an index, or RAG_SERVE_INDEX; several as NAME=DIR, the default first.",
            panel=DATA,
        ),
    ] = None,
    host: Annotated[
        str | None, option(help="Address to listen on; default 127.0.0.1.", panel="Address")
    ] = None,
    port: Annotated[
        int | None, option(min=0, max=65535, help="Port to listen on; default 8000.", panel="Address")
    ] = None,
    workers: Annotated[
        int | None,
        option(min=1, help="Processes that serve; they share the index's files. Default 1.", panel="Address"),
    ] = None,
    ray: Annotated[
        str | None,
        option(
            help="Search the vectors on the Ray cluster at this address; options follow a comma, as in "
            "auto,shards=4.",
            panel="Cluster",
        ),
    ] = None,
) -> None:
    """Answer over HTTP. Limits, keys and batching are set by RAG_SERVE_… variables (see the README)."""
    from serve.run import leave, run_server
    from serve.settings import load_settings

    own = {"index": tuple(index or ()) or None, "host": host, "port": port, "workers": workers, "ray": ray}
    run_server(load_settings(**{name: value for name, value in (own | opening).items() if value is not None}))
    leave()
