"""Opens verifiers."""

from __future__ import annotations

from pathlib import Path

from rag.core.errors import ArtifactError
from readers.protocols import Verifier


def load_verifier(folder: str | Path | None = None) -> Verifier:
    """Open the verifier of a folder.

    Args:
        folder: what `rag train verifier` wrote; None for the verifier that ships.

    Raises:
        ArtifactError: there is none.
    """
    where = "this installation" if folder is None else str(folder)
    hint = "train one with `rag train verifier`, and give its folder as {verifier}"
    raise ArtifactError(f"there is no verifier in {where}", hint=hint, arguments=["verifier"])
