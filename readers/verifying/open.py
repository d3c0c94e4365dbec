"""Opens verifiers."""

from __future__ import annotations

from pathlib import Path

from rag.core.errors import ArtifactError
from readers.manifest import READER_FILE
from readers.protocols import Verifier


def load_verifier(folder: str | Path | None = None, *, precision: str = "auto") -> Verifier:
    """Open the verifier of a folder.

    Args:
        folder: what `rag train verifier` wrote; None for the verifier that ships.
        precision: "auto", "fp32" or "bf16".

    Raises:
        ArtifactError: there is none, or its files are damaged.
    """
    from readers.verifying.files import SHIPPED_VERIFIER
    from readers.verifying.verifier import CrossVerifier

    if not (Path(folder or SHIPPED_VERIFIER) / READER_FILE).is_file():
        where = "this installation" if folder is None else str(folder)
        hint = "train one with `rag train verifier`, and give its folder as {verifier}"
        raise ArtifactError(f"there is no verifier in {where}", hint=hint, arguments=["verifier"])
    return CrossVerifier.load(folder, precision=precision)
