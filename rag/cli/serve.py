"""`rag serve`: answers over HTTP, with a web page."""

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from rag.cli.options import OPENING, Count, Options

_OPENING = Options({name: (kind, None) for name, (kind, _) in OPENING.items()})


def serve(
    opening: Annotated[dict[str, Any], _OPENING],
    index: Path | None = None,
    host: str | None = None,
    port: Annotated[int, Ge(0), Le(65535)] | None = None,
    workers: Count | None = None,
    ray: str | None = None,
) -> None:
    """Answer over HTTP. Limits, keys and batching are set by RAG_SERVE_… variables (`rag docs serving`).

    Args:
        index: Folder of an index, or RAG_SERVE_INDEX.
        host: Address to listen on; default 127.0.0.1.
        port: Port to listen on; default 8000.
        workers: Processes that serve; they share the index's files. Default 1.
        ray: Search the vectors on the Ray cluster at this address; options follow a comma, as in
            auto,shards=4.
    """
    from serve.run import leave, run_server
    from serve.settings import load_settings

    own = {"index": index, "host": host, "port": port, "workers": workers, "ray": ray}
    run_server(load_settings(**{name: value for name, value in (own | opening).items() if value is not None}))
    leave()
