"""`rag mcp`: search, fetch and ask as tools of an MCP client."""

import sys
from typing import Annotated

import typer
from annotated_types import Ge, Le

from rag.cli.options import Opening


def mcp(
    index: str,
    opening: Opening,
    top_k: Annotated[int, Ge(1), Le(100)] = 10,
    http: bool = False,
    host: str = "127.0.0.1",
    port: Annotated[int, Ge(1), Le(65535)] = 8001,
) -> None:
    """Serve an index to MCP clients, over standard input and output or HTTP.

    Args:
        top_k: Results of a search.
        http: Serve streamable HTTP at /mcp instead of standard input and output.
        host: Address to listen on, with --http.
        port: Port to listen on, with --http.
    """
    from rag.core.optional import require

    require("mcp.server.mcpserver", extra="mcp")  # before models are loaded
    from rag.integrations.mcp import create_mcp_server
    from rag.pipeline import Pipeline

    server = create_mcp_server(Pipeline.open(index, **opening), top_k=top_k)
    if not http:
        typer.echo("serving MCP over standard input and output; an MCP client starts this command", err=True)
        server.run("stdio")
        return
    if host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo(f"anyone who reaches {host}:{port} may ask: there are no keys here", err=True)
    typer.echo(f"serving MCP at http://{host}:{port}/mcp", err=True)
    sys.stderr.flush()
    server.run("streamable-http", host=host, port=port)
