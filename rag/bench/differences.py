"""Whether two index directories hold the same bytes, and which embedding shards one of them has finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rag.core.files import sha256_file
from rag.core.manifest import MANIFEST_NAME

__all__ = ["byte_differences", "finished_shards", "lucene_folders"]

_LEDGER = "ledger.jsonl"
_NOT_COMPARED = (".lock", "build_log.json")  # the log holds wall times


def lucene_folders(directory: Path) -> list[Path]:
    """Folders below `directory` that hold a Lucene index; their bytes differ from run to run."""
    return sorted({path.parent for path in directory.rglob("segments_*")})


def _digests(directory: Path) -> dict[str, str]:
    """sha256 of every file by relative path; Lucene's files, and what manifests say of them, are left out."""
    folders = lucene_folders(directory)
    digests = {}
    for path in sorted(directory.rglob("*")):
        if (
            not path.is_file()
            or path.name in _NOT_COMPARED
            or any(folder in path.parents for folder in folders)
        ):
            continue
        relative = path.relative_to(directory).as_posix()
        if folders and path.name == MANIFEST_NAME:
            prefixes = ("checksum", *(f"{folder.relative_to(directory).as_posix()}/" for folder in folders))
            digests[relative] = json.dumps(
                _without(json.loads(path.read_text("utf-8")), prefixes), sort_keys=True
            )
        else:
            digests[relative] = sha256_file(path)
    return digests


def _without(value: Any, prefixes: tuple[str, ...]) -> Any:
    """`value` without the entries whose key begins with one of `prefixes`."""
    if isinstance(value, dict):
        return {key: _without(item, prefixes) for key, item in value.items() if not key.startswith(prefixes)}
    return value


def byte_differences(directory: Path, reference: Path) -> list[str]:
    """Relative paths of files that differ, are missing or are too many; Lucene's own files are left out."""
    found, expected = _digests(directory), _digests(reference)
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def finished_shards(directory: Path) -> dict[str, tuple[int, int]]:
    """Embedding shards the ledger calls finished: file name → (inode, mtime in ns)."""
    shards = {}
    for ledger in directory.rglob(_LEDGER):
        for line in ledger.read_bytes().split(b"\n")[:-1]:
            path = ledger.parent / f"shard-{int(json.loads(line)['shard']):05d}.npy"
            if path.exists():
                state = path.stat()
                shards[path.name] = (state.st_ino, state.st_mtime_ns)
    return shards
