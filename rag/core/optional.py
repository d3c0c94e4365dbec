"""Import optional packages where they are used, with an error that names the extra; installed
versions.
"""

import importlib
from importlib import metadata
from types import ModuleType

from rag.core.errors import MissingDependencyError

DISTRIBUTION = "openqa-rag"


def require(module: str, extra: str) -> ModuleType:
    """Import `module`.

    Raises:
        MissingDependencyError: it is not installed; the hint names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs the package {module.partition('.')[0]!r}, which is not installed ({error})",
            hint=f"pip install '{DISTRIBUTION}[{extra}]'",
        ) from error


def installed_version(distribution: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
