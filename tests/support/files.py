"""Folders of files, and indexes of them."""

import json
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


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, and make the folder of the file."""
    write_files(path.parent, {path.name: json.dumps(value)})


def change_json(path: Path, **fields: Any) -> None:
    """Give the JSON object of a file other values of these fields, or further ones."""
    write_json(path, {**json.loads(path.read_text()), **fields})


def write_modules(folder: Path, *kinds: str, home: str = "sentence_transformers.models") -> None:
    """The list of the modules of a sentence-transformers folder; the first lies in the folder."""
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"{home}.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)


def index_files(place: Path, files: Mapping[str, str | bytes], **options: Any) -> tuple[Path, Path]:
    """`folder` of these files, and `index` of that folder, which BM25 searches."""
    folder = write_files(place / "folder", files)
    settings = {"retriever": "bm25", "threads": 1, **options}
    return folder, rag.index(folder, place / "index", **settings)
