"""`rag import`: convert published checkpoints into folders of this system, without executing their code."""

from pathlib import Path
from typing import Annotated

import typer

from rag.core.errors import ConfigError


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint of DPR (.cp) or with the same names, a folder of RAG, or minilm-qa, as a "
            "folder for other libraries."
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
    """Convert a dense retriever of DPR's code, or RAG.

    Only tensors are read, nothing is executed.
    """
    from rag.core.log import setup_logging
    from rag.joint.rag_import import import_rag, is_rag
    from rag.runtime.low_rank import is_difference, write_whole
    from rag.runtime.model_files import QA_ENCODER, model_folder
    from retrievers.encoders.import_weights import import_checkpoint

    setup_logging("INFO")
    if is_rag(source):
        _refuse_unused("a RAG checkpoint", base=base)
        reader = import_rag(source, out, index)
        typer.echo(f"reader → {reader}\nuse it: rag ask … --reader {reader}")
        return
    place = model_folder(source) if str(source) == QA_ENCODER else source
    if is_difference(place):
        _refuse_unused(str(source), base=base, index=index)
        folder = write_whole(place, out)
        typer.echo(f"encoder → {folder}\nuse it: rag index … --encoder {folder}")
        return
    _refuse_unused("a checkpoint of a bi-encoder", index=index)
    folder = import_checkpoint(source, out, base=base)
    typer.echo(f"encoder → {folder}\nuse it: rag index … --encoder {folder}")


def _refuse_unused(what: str, **options: object) -> None:
    """Refuse options that this kind of source has no use for."""
    if given := [f"--{name}" for name, value in options.items() if value is not None]:
        raise ConfigError(f"{given[0]} has no use with {what}", hint="leave it out")
