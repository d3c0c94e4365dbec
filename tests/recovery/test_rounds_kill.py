"""Rounds of distillation are killed while they score and while they index, and end in equal bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rag.core.types import Passage
from rag.data.examples import Example
from rag.rounds import rounds, scoring
from rag.rounds.rounds import run_rounds
from rag.rounds.signals import Judge
from tests.unit.rag.rounds.test_rounds import Reader, configs, world
from tests.worlds import start_process

__all__ = ["world"]  # the fixture


class Killed(Reader):
    """Dies of the third block of questions."""

    blocks = 0

    def judge(self, asked: Sequence[Example]) -> list[Any]:
        self.blocks += 1
        if self.blocks == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().judge(asked)


def _run(place: dict[str, Any], out: Path, dies: str) -> None:
    scoring._BLOCK = 16
    Judge.open = lambda *_: Killed() if dies == "scoring" else Reader()  # type: ignore[assignment,method-assign]
    real = rounds.build_index

    def build_index(passages: Any, *given: Any, **more: Any) -> Any:
        def some() -> Iterator[Passage]:
            for number, passage in enumerate(passages):
                if number == 40:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield passage

        return real(some(), *given, **more)

    if dies == "indexing":
        rounds.build_index = build_index
    run_rounds(*configs(place, out, steps=2, rounds=1))


def test_killed_rounds_end_in_equal_bytes(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_BLOCK", 16)
    monkeypatch.setattr(Judge, "open", lambda *_: Reader())
    whole = run_rounds(*configs(world, tmp_path / "whole", steps=2, rounds=1))
    for dies, left in (("scoring", "scored.json.scoring/block-000001.counts.json"), ("indexing", "index")):
        process = start_process(_run, world, tmp_path / "cut", dies)
        process.join(240)
        assert process.exitcode == -signal.SIGKILL
        assert (tmp_path / "cut" / "round-1" / left).exists()
    assert not (tmp_path / "cut" / "round-1" / "index" / "manifest.json").exists()
    cut = run_rounds(*configs(world, tmp_path / "cut", steps=2, rounds=1))
    assert [result.figures for result in cut] == [result.figures for result in whole]
    names = ("scored.json", "retriever/encoder/model.safetensors", "index/embeddings/*.npy")
    found = [
        sorted(path for name in names for path in (tmp_path / run / "round-1").glob(name))
        for run in ("cut", "whole")
    ]
    assert len(found[0]) >= 3
    for one, other in zip(*found, strict=True):
        assert one.read_bytes() == other.read_bytes(), one
