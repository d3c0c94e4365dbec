"""`rag import`: published checkpoints in pickle form → safetensors, without running what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    source: Annotated[Path, typer.Argument(help="Checkpoint of DPR (.cp) or with the same names.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")],
    base: Annotated[
        str | None,
        typer.Option(
            help="Model it was trained from (folder or Hugging Face name), if not bert-base-uncased."
        ),
    ] = None,
) -> None:
    """Convert a dense retriever's checkpoint; only tensors are read, nothing in the file is executed."""
    from rag.core.log import setup_logging
    from retrievers.encoders.checkpoint_import import import_checkpoint

    setup_logging("INFO")
    folder = import_checkpoint(source, out, base=base)
    typer.echo(f"encoder → {folder}\nuse it: rag index … --encoder {folder}")
