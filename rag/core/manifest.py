"""Manifests: one JSON file per artefact, written last, so that its presence means complete."""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from rag.core.errors import ArtifactError, DataError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_write_json, read_json, sha256_file

FORMAT_VERSION = 1
NEWEST_VERSION = 3  # of indexes, whose files lie in a folder that the manifest names
BUILDING_DIR = "building"  # in an index directory: a build that is not finished
MANIFEST_NAME = "manifest.json"


def file_table(directory: Path, relative_paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and sha256 of files, keyed by their path relative to `directory` (POSIX form)."""
    return {
        relative: {
            "size_bytes": (directory / relative).stat().st_size,
            "sha256": sha256_file(directory / relative),
        }
        for relative in sorted(relative_paths)
    }


def write_manifest(directory: str | Path, data: Mapping[str, Any]) -> None:
    """Write `manifest.json`; call it after every other file is in place.

    Its format version is `FORMAT_VERSION`, unless `data` states another one.
    """
    atomic_write_json(Path(directory) / MANIFEST_NAME, {"format_version": FORMAT_VERSION, **data})


def version_of(manifest: Mapping[str, Any]) -> str:
    """The version of the index that a manifest describes; indexes of the first format state a checksum."""
    return str(manifest.get("version") or manifest["checksum"][:12])


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, finished or not: it has one writer's lock, and says what was built."""
    # a folder that may not be entered is none, and no error
    holds = os.path.isfile(folder / MANIFEST_NAME) or os.path.isdir(folder / BUILDING_DIR)
    return os.path.isfile(folder / ".lock") and holds


def read_manifest(directory: str | Path, *, kind: str | None = None) -> dict[str, Any]:
    """Read and check `manifest.json`.

    Args:
        kind: expected value of the manifest's `kind`, for example "index".

    Raises:
        IncompleteArtifactError: there is no manifest, so the artefact was never finished.
        MismatchedArtifactError: another kind of artefact or a newer format.
        ArtifactError: the manifest is not readable.
    """
    place = Path(directory)
    path = place / MANIFEST_NAME
    if not path.exists():
        problem = f"has no {MANIFEST_NAME}: it is not a finished artefact"
        raise IncompleteArtifactError(
            f"{place} {problem}" if place.is_dir() else f"{place}: no such directory",
            hint="check the path; `rag index` and `rag train` write such folders and resume",
        )
    try:
        manifest = read_json(path)
    except DataError as error:
        raise ArtifactError(f"{path} is damaged: {error.message}", hint="rebuild the artefact") from error
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise ArtifactError(f"{path} is not a manifest of this system", hint="point to another directory")
    if version > NEWEST_VERSION:
        raise MismatchedArtifactError(
            f"{path} has format version {version}, expected {NEWEST_VERSION} or less",
            hint="upgrade the program, or rebuild the artefact",
        )
    if kind is not None and manifest.get("kind") != kind:
        found = manifest.get("kind", "nameless")
        raise MismatchedArtifactError(f"{place} is a {found!r} artefact, expected {kind!r}")
    return dict(manifest)


def claim(
    path: Path,
    wanted: Mapping[str, Any],
    what: str,
    *,
    hint: str,
    found: Mapping[str, Any] | None = None,
    free: Collection[str] = (),
) -> None:
    """Record in the JSON file `path` the values that decide the content of its folder, or check them.

    Args:
        what: name of the folder's content for messages, such as "rounds".
        found: values to compare with instead of those in the file.
        free: names whose values may differ.

    Raises:
        MismatchedArtifactError: the file has other values; the message lists them with both values.
    """
    if found is None:
        found = read_json(path) if path.is_file() else wanted
    names = sorted(key for key in {*found, *wanted} - {*free} if found.get(key) != wanted.get(key))
    if names:
        changed = differences(*({name: side.get(name) for name in names} for side in (found, wanted)))
        raise MismatchedArtifactError(
            f"{path.parent} holds {what} whose {', '.join(names)} differ from those given now ({changed})",
            hint=hint,
        )
    atomic_write_json(path, wanted)


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any], *, prefix: str = "") -> str:
    """Describe for a message where two nested mappings differ; "" if they do not.

    Example:
        >>> differences({"seed": 0, "read": {"limit": 5}}, {"seed": 0, "read": {"limit": None}})
        'read.limit: 5, now None'
        >>> differences({"files": [{"name": "a.md"}]}, {"files": [{"name": "b.md"}]})
        'files: others are a.md, b.md'
    """
    changed = list[str]()
    for key in sorted({*found, *wanted}):
        before, after = found.get(key), wanted.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed += filter(None, [differences(before, after, prefix=f"{prefix}{key}.")])
        elif before != after and isinstance(before, list) and isinstance(after, list):
            either = {*map(str, before)} ^ {*map(str, after)}
            others = [one for one in (*before, *after) if str(one) in either]
            names = dict.fromkeys(
                str(one.get("name", one) if isinstance(one, dict) else one) for one in others
            )
            changed.append(f"{prefix}{key}: others are {', '.join([*names][:3])}{', …' * (len(names) > 3)}")
        elif before != after:
            changed.append(f"{prefix}{key}: {before!r:.100}, now {after!r:.100}")
    return "; ".join(changed)


def verify_files(directory: str | Path, table: Mapping[str, Mapping[str, Any]], *, deep: bool) -> None:
    """Compare files with a manifest's table: sizes always, checksums too if `deep`.

    Raises:
        ArtifactError: names the first file that is missing, of another size, or of another content.
    """
    place = Path(directory)
    for relative, expected in table.items():
        path, wrong = place / relative, ""
        if not path.is_file():
            wrong = "is missing"
        elif (found := path.stat().st_size) != expected["size_bytes"]:
            wrong = f"has {found} bytes, expected {expected['size_bytes']}: truncated or replaced"
        elif deep and sha256_file(path) != expected["sha256"]:
            wrong = "does not match its checksum: its bytes were changed"
        if wrong:
            raise ArtifactError(f"{path} {wrong}", hint="restore it or rebuild the artefact")
