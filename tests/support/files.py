"""Folders of files, and indexes of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rag


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files, named by their path in the folder, which is returned."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def index_files(place: Path, files: Mapping[str, str | bytes], **options: Any) -> tuple[Path, Path]:
    """`folder` of these files, and `index` of that folder, which BM25 searches."""
    folder = write_files(place / "folder", files)
    settings = {"retriever": "bm25", "threads": 1, **options}
    return folder, rag.index(folder, place / "index", **settings)
