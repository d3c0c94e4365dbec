"""What holds for all weights that are part of the package."""

import shutil
from collections.abc import Callable
from pathlib import Path

from rag.core.errors import MismatchedArtifactError
from tests.support.messages import refusal


def check_packaged_weights(
    folder: Path, file: str, sha256: str, *, most: float, copy: Path, load: Callable[[], object]
) -> None:
    """They are small, their card names their checksum, and changed ones are refused.

    Args:
        most: bytes that the folder may have.
        copy: a new folder, from which `load` is made to load.
    """
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < most
    assert sha256 in (folder / "README.md").read_text()
    shutil.copytree(folder, copy)
    (copy / file).write_bytes(b"other")
    with refusal(MismatchedArtifactError):
        load()
