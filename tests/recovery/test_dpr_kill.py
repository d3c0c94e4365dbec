"""`rag train dpr` killed in the middle and started again: the same losses, the same encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from retrievers.training import recipe
from retrievers.training.config import DprTrainConfig
from retrievers.training.dpr import train_dpr
from tests.worlds import killed_at


def _examples(path: Path) -> Path:
    words = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmn"]
    passages = [Passage(str(n), "title", f"the river {word} rises") for n, word in enumerate(words)]
    write_examples(
        path,
        (
            Example.labelled(str(n), f"who wrote {word}", (), (passages[n],), (passages[n - 1],))
            for n, word in enumerate(words)
        ),
    )
    return path


def _losses(out: Path) -> list[tuple[Any, ...]]:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r.get("loss"), r.get("norm"), r.get("eval/nll")) for r in records]


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_kill_and_resume_change_nothing(tmp_path: Path, tiny_bert: Path, chunk_size: int | None) -> None:
    common: dict[str, Any] = {
        "train_files": (_examples(tmp_path / "train.json"),), "question_encoder": str(tiny_bert),
        "question_tokens": 16, "passage_tokens": 16, "batch_size": 8, "learning_rate": 1e-3, "dropout": 0.1,
        "max_steps": 12, "epochs": 9, "precision": "fp32", "log_every_steps": 1, "save_every_s": 1e-9,
        "validation_fraction": 0.2, "ema": 0.9, "threads": 1, "chunk_size": chunk_size,
    }  # fmt: skip
    train_dpr(DprTrainConfig(out=tmp_path / "whole", **common))
    killed = DprTrainConfig(out=tmp_path / "killed", **common)
    killed_at(recipe, "contrastive_step", 7, train_dpr, killed)
    assert not (killed.out / "encoder").exists()
    train_dpr(killed)

    assert _losses(killed.out) == _losses(tmp_path / "whole")
    assert len(_losses(killed.out)) == 13
    for name in ("model.safetensors", "config.json", "modules.json"):
        whole = (tmp_path / "whole" / "encoder" / name).read_bytes()
        assert (killed.out / "encoder" / name).read_bytes() == whole
