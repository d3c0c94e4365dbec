"""`rag inspect`: what is in an index."""

import json
from pathlib import Path

import typer


def inspect(directory: Path, /, verify: bool = False, as_json: bool = False) -> None:
    """Show what is in an index, how it was built, and with --verify whether every byte is as written.

    Args:
        directory: Directory written by `rag index`.
        verify: Read every file and check its checksum.
        as_json: Print the manifest as JSON.
    """
    from indexers.index import Index

    with Index.open(directory, verify="deep" if verify else "size") as index:
        typer.echo(json.dumps(index.manifest, indent=2, ensure_ascii=False) if as_json else index.describe())
    if verify and not as_json:
        typer.echo("every checksum matches")
