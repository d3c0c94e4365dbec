"""What is retrieved for the questions of `rag train generator`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.cli import retrieve
from rag.cli.train import _with_passages
from rag.core.types import Passage


def test_every_file_gets_passages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stub(*, questions: str, out: Path, **_: Any) -> None:
        asked.append(questions)
        out.write_text(questions)

    monkeypatch.setattr(retrieve, "retrieve", stub)
    lexical = BuildSettings(retriever="bm25", java_heap_mib=256)
    for name in ("one", "two"):
        build_index([Passage("a", "", f"text {name}")], tmp_path / name, settings=lexical)
        (tmp_path / f"set-{name}").mkdir()
        (tmp_path / f"set-{name}" / "train.jsonl").write_text(
            json.dumps({"question": f"{name}?", "answers": ["x"]})
        )
    first, second = (tmp_path / f"set-{name}" / "train.jsonl" for name in ("one", "two"))

    def found(file: Path, index: str = "one", top_k: int = 5) -> Path:
        return _with_passages(file, tmp_path / index, top_k, tmp_path / "run")

    places = [found(first), found(second), found(first, "two"), found(first, top_k=6)]
    assert len(set(places)) == len(asked) == 4
    assert found(first) == places[0]  # it is there
    assert len(asked) == 4
    first.write_text(json.dumps({"question": "corrected?", "answers": ["x"]}))
    assert found(first) not in places
