"""`rag mcp`: search, fetch and ask as tools of an MCP client."""

import sys
from typing import Annotated, Any

import typer

from rag.cli.options import OPENING, OUTPUT, IndexDir, adds_options, option


@adds_options("opening", OPENING)
def mcp(
    index: IndexDir,
    opening: dict[str, Any],
    top_k: Annotated[int, option(min=1, max=100, help="Results of a search.", panel=OUTPUT)] = 10,
    http: Annotated[
        bool,
        option(
            "--http",
            help="Serve streamable HTTP at /mcp instead of standard input and output.",
            panel="Address",
        ),
    ] = False,
    host: Annotated[str, option(help="Address to listen on, with --http.", panel="Address")] = "127.0.0.1",
    port: Annotated[
        int, option(min=1, max=65535, help="Port to listen on, with --http.", panel="Address")
    ] = 8001,
) -> None:
    """Serve an index to MCP clients, over standard input and output or HTTP."""
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
