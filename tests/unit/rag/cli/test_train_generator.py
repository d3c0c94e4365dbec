"""What is retrieved for the questions of `rag train generator`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.core.types import Passage, Question
from rag.eval import runs
from rag.pipeline import Pipeline
from rag.recipes import RECIPES
from readers.generative.training.config import GeneratorTrainConfig


def test_every_file_gets_passages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stub(pipeline: Pipeline, questions: list[Question], out: Path, top_k: int) -> None:
        asked.append(questions[0].text)
        out.write_text(json.dumps([{"question": "q", "answers": ["x"], "ctxs": [{"text": "t"}]}]))

    monkeypatch.setattr(runs, "write_results", stub)
    lexical = BuildSettings(retriever="bm25", java_heap_mib=256)
    for name in ("one", "two"):
        build_index([Passage("a", "", f"text {name}")], tmp_path / name, settings=lexical)
        (tmp_path / f"set-{name}").mkdir()
        (tmp_path / f"set-{name}" / "train.jsonl").write_text(
            json.dumps({"question": f"{name}?", "answers": ["x"]})
        )
    first, second = (tmp_path / f"set-{name}" / "train.jsonl" for name in ("one", "two"))

    def found(file: Path, index: str = "one", top_k: int = 5) -> Path:
        config = GeneratorTrainConfig(
            train_files=(file,), out=tmp_path / "run", index=tmp_path / index, top_k=top_k,
            stages=({"steps": 1},),
        )  # fmt: skip
        (place,) = RECIPES["generator"].resolve(config).train_files
        return Path(place)

    places = [found(first), found(second), found(first, "two"), found(first, top_k=6)]
    assert len(set(places)) == len(asked) == 4
    assert found(first) == places[0]  # it is there
    assert len(asked) == 4
    first.write_text(json.dumps({"question": "corrected?", "answers": ["x"]}))
    assert found(first) not in places
    assert found(places[0]) == places[0]  # it has passages
