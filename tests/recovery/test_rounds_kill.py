"""Rounds of distillation are killed while they score and while they index, and end in equal bytes."""

from pathlib import Path
from typing import Any
from unittest import mock

from indexers.embeddings import EmbeddingWriter
from rag.jobs import train_rounds
from rag.rounds import scoring
from rag.rounds.signals import Judge
from tests.unit.rag.rounds.test_rounds import Reader, configs, world
from tests.worlds import killed_at

__all__ = ["world"]  # the fixture


def _run(place: dict[str, Any], out: Path) -> list[Any]:
    settings, training = configs(place, out, steps=2, rounds=1)
    with mock.patch.object(scoring, "_BLOCK", 16), mock.patch.object(Judge, "open", return_value=Reader()):
        return train_rounds(
            "distill",
            training=training.model_dump(exclude_unset=True, exclude={"out", "train_files"}),
            **settings.model_dump(exclude_unset=True),
        )


def test_killed_rounds_end_in_equal_bytes(world: dict[str, Any], tmp_path: Path) -> None:
    whole = _run(world, tmp_path / "whole")
    for owner, name, call, left in (
        (
            Reader,
            "judge",
            2,
            "examples.json.scoring/block-000001.counts.json",
        ),  # the third block of questions
        (EmbeddingWriter, "write", 0, "index"),
    ):
        killed_at(owner, name, call, _run, world, tmp_path / "cut")
        assert (tmp_path / "cut" / "round-1" / left).exists()
    assert not (tmp_path / "cut" / "round-1" / "index" / "manifest.json").exists()
    cut = _run(world, tmp_path / "cut")
    assert [result.figures for result in cut] == [result.figures for result in whole]
    names = ("examples.json", "retriever/encoder/model.safetensors", "index/embeddings/*.npy")
    found = [
        sorted(path for name in names for path in (tmp_path / run / "round-1").glob(name))
        for run in ("cut", "whole")
    ]
    assert len(found[0]) >= 3
    for one, other in zip(*found, strict=True):
        assert one.read_bytes() == other.read_bytes(), one
