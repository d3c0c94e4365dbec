"""`rag inspect`: what is in an index."""

import json
from pathlib import Path
from typing import Annotated

import typer


def inspect(
    directory: Annotated[Path, typer.Argument(help="Directory written by `rag index`.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and check its checksum.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Show what is in an index, how it was built, and with --verify whether every byte is as written."""
    from indexers.index import Index

    with Index.open(directory, verify="deep" if verify else "size") as index:
        typer.echo(json.dumps(index.manifest, indent=2, ensure_ascii=False) if as_json else index.describe())
    if verify and not as_json:
        typer.echo("every checksum matches")
