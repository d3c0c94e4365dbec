"""Manifests: one JSON file per artefact, written last, so that its presence means complete."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rag.core.errors import (
    ArtifactError,
    DataError,
    IncompleteArtifactError,
    MismatchedArtifactError,
)
from rag.core.files import atomic_write_json, read_json

MANIFEST_NAME = "manifest.json"
# Of indexes, whose manifest has stages and settings.
NEWEST_VERSION = 4
# In an index directory: the files of a version; a build and an update that are not finished; changes
# of documents that a server accepted; who may read which document, and the lock of those who change
# it; what is promised of answers and of verdicts.
DATA_PREFIX = "data-"
BUILDING_DIR = "building"
UPDATING_DIR = "updating"
UPLOADS_DIR = "uploads"
RIGHTS_DIR = "rights"
RIGHTS_LOCK = ".rights.lock"
PROMISE_NAME = "promise.json"
VERDICT_PROMISE_NAME = "promise-verdicts.json"

# Items of a list that a message names.
_SHOWN = 3


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, finished or not: it has one writer's lock, and says what was
    built.
    """
    # A folder that may not be entered is none, and no error.
    holds = os.path.isfile(folder / MANIFEST_NAME) or os.path.isdir(folder / BUILDING_DIR)
    return os.path.isfile(folder / ".lock") and holds


def read_manifest(directory: str | Path) -> dict[str, object]:
    """Read and check `manifest.json`.

    Raises:
        IncompleteArtifactError: there is no manifest, so the artefact was never finished.
        MismatchedArtifactError: a newer format.
        ArtifactError: the manifest is not readable.
    """
    folder = Path(directory)
    path = folder / MANIFEST_NAME
    if not path.exists():
        problem = f"{folder} has no {MANIFEST_NAME}: it is not a finished artefact"
        hint = "check the path; `rag index` and `rag train` write such folders and resume"
        if (folder / BUILDING_DIR).is_dir():
            problem = f"{folder} holds a build that was interrupted"
            hint = f"give its command again: rag index … --out {folder} continues it"
        raise IncompleteArtifactError(
            problem if folder.is_dir() else f"{folder}: no such directory", hint=hint
        )
    hint = "rebuild the artefact, or point to another directory"
    try:
        manifest = read_json(path)
    except DataError as error:
        raise ArtifactError(f"the manifest {error.message}", hint=hint) from error
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise ArtifactError(
            f"{path} is no manifest of this program: it has no format_version", hint=hint
        )
    if version > NEWEST_VERSION:
        raise MismatchedArtifactError(
            f"{path} has format version {version}, expected {NEWEST_VERSION} or less",
            hint="upgrade the program, or rebuild the artefact",
        )
    return dict(manifest)


def index_version(directory: str | Path) -> str:
    """The version of a finished index; for errors see `read_manifest`."""
    return str(read_manifest(directory).get("version", ""))


def claim(
    path: Path,
    values: Mapping[str, object],
    what: str,
    *,
    hint: str = "choose another {out}, or give what it was begun with",
    free: Collection[str] = (),
) -> None:
    """Record in the JSON file `path` the values that decide the content of its folder, or check
    them.

    Args:
        what: other content of the folder, for messages, such as "rounds with other settings".
        free: names whose values may differ.

    Raises:
        MismatchedArtifactError: the file has other values; the message lists them with both values.
    """
    before = dict(read_json(path) if path.is_file() else values)
    # What may differ is as it is now.
    before |= {name: values.get(name) for name in free}
    changed = differences(before, values)
    if changed:
        raise MismatchedArtifactError(
            f"{path.parent} holds {what} ({changed})", hint=hint, arguments=["out"]
        )
    atomic_write_json(path, values)


def differences(
    before: Mapping[str, object], after: Mapping[str, object], *, prefix: str = ""
) -> str:
    """Describe for a message where two nested mappings differ; "" if they do not.

    Example:
        >>> differences({"seed": 0, "read": {"limit": 5}}, {"seed": 0, "read": {"limit": None}})
        'read.limit: 5, now None'
        >>> differences({"files": [{"name": "a.md"}]}, {"files": [{"name": "b.md"}]})
        'files: others are a.md, b.md'
    """
    changed = list[str]()
    for key in sorted({*before, *after}):
        old = before.get(key)
        new = after.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed.append(differences(old, new, prefix=f"{prefix}{key}."))
        elif isinstance(new, list):
            changed.append(f"{prefix}{key}: others are {_others(old, new)}")
        else:
            changed.append(f"{prefix}{key}: {old!r:.100}, now {new!r:.100}")
    return "; ".join(changed)


def _others(old: object, new: list[Any]) -> str:
    """Names of what is in one list alone; the files of an index that was updated are no list."""
    before = old if isinstance(old, list) else []
    names = []
    for item in (*before, *new):
        if item not in before or item not in new:
            names.append(str(item.get("name") if isinstance(item, dict) else item))
    return ", ".join(list(dict.fromkeys(names))[:_SHOWN])
