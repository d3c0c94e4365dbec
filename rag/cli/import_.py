"""`rag import`: convert published checkpoints into folders of this system, without executing their code."""

from pathlib import Path

import typer

from rag.core.errors import ArtifactError


def import_(source: Path, /, out: Path, index: Path | None = None) -> None:
    """Convert RAG's checkpoint, or the encoder of this package.

    Only tensors are read, nothing is executed.

    Args:
        source: Folder of RAG, or minilm-qa, which becomes a folder for other libraries.
        out: Folder to write; must not exist or be empty.
        index: Index that a RAG checkpoint's question encoder is to search.
    """
    from rag.core.log import setup_logging
    from rag.joint.rag_import import import_rag
    from rag.runtime.model_files import QA_ENCODER, is_difference, model_folder, write_whole

    setup_logging("INFO")
    if source.is_file():
        raise ArtifactError(
            f"{source} is a file, expected a folder",
            hint="a checkpoint of DPR's code (.cp) becomes folders by a script of transformers 4, "
            "convert_dpr_original_checkpoint_to_pytorch.py; those open as they are",
        )
    place = model_folder(source) if str(source) == QA_ENCODER else source
    if is_difference(place):
        folder = write_whole(place, out)
        typer.echo(f"encoder → {folder}\nuse it: rag index … --encoder {folder}")
    else:
        reader = import_rag(source, out, index)
        typer.echo(f"reader → {reader}\nuse it: rag ask … --reader {reader}")
