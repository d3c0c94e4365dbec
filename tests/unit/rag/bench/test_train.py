"""`rag bench train`: all contestants do the same work, in processes of their own."""

from pathlib import Path
from typing import Any

import pytest

from rag.bench.common import Timings
from rag.bench.report import Report
from rag.bench.train import CONTESTANTS, _fill, run_train_benchmark
from rag.bench.train_worker import make_step
from rag.core.errors import ConfigError, DataError, ResourceError
from rag.core.types import Passage
from rag.data.examples import Example, write_examples


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    passages = [Passage(str(n), "title", f"the river {n} rises in the black forest") for n in range(40)]
    path = tmp_path / "train.json"
    write_examples(
        path,
        (
            Example.labelled(str(n), f"who wrote {n}", (), (passages[n],), (passages[n - 1],))
            for n in range(40)
        ),
    )
    return path


def _settings(train_file: Path, encoder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "train_file": str(train_file), "encoder": str(encoder), "batch_size": 8, "chunk_size": 3,
        "tokens": 24, "hard_negative": True, "threads": 1, "seed": 5, "steps": 3, "questions": 40,
        "device": "cpu", **changes,
    }  # fmt: skip


def test_all_contestants_compute_the_same_losses(tmp_path: Path, tiny: Any, train_file: Path) -> None:
    encoder = tiny.sentence_transformer(tmp_path / "encoder")
    losses = {
        name: [step() for _ in range(3)]
        for name, kind in CONTESTANTS.items()
        for step in [make_step(_settings(train_file, encoder, **{**kind, "precision": "fp32"}))]
    }
    for name, found in losses.items():
        assert found == pytest.approx(losses["ours"], rel=2e-4), name
    assert losses["ours"][0] > 0.1


def test_a_contestant_in_a_process_of_its_own(tiny_bert: Path, train_file: Path) -> None:
    report = run_train_benchmark(
        train_file, encoder=str(tiny_bert), batch_size=8, chunk_size=3, tokens=24, rounds=2,
        contestants=["ours cached"], memory_goal_gib=1e-9,
    )  # fmt: skip
    assert len(report.figures["timings"]["ours cached"]["rounds_s"]) == 2
    assert report.figures["peak_bytes"]["ours cached"] > 50 << 20
    assert [goal.is_met for goal in report.goals] == [False]


def test_ours_is_compared_with_the_best_peer_of_its_kind() -> None:
    seconds = {"ours": 1.0, "ours cached": 2.0, "peer fp32": 3.0, "peer bf16": 2.5, "peer cached bf16": 2.2}
    report = Report("train", {})
    _fill(
        report,
        Timings({name: (value, value) for name, value in seconds.items()}),
        dict.fromkeys(seconds, 1 << 30),
        {name: [0.5] for name in seconds},
        size=8,
    )
    assert [(goal.name, goal.value, goal.is_met) for goal in report.goals] == [
        ("examples/s, ours / peer bf16", 2.5, True),
        ("examples/s, ours cached / peer cached bf16", pytest.approx(1.1), False),
    ]
    assert "2.50 [2.50, 2.50]" in report.to_text()


def test_wrong_settings(tmp_path: Path, tiny_bert: Path, train_file: Path) -> None:
    with pytest.raises(ConfigError, match="expected some of"):
        run_train_benchmark(train_file, contestants=["theirs"])
    with pytest.raises(DataError, match="40 usable examples for batches of 64"):
        make_step(_settings(train_file, tiny_bert, **CONTESTANTS["ours"], batch_size=64))
    with pytest.raises(ResourceError, match=r"(?s)'ours' ended with code 1.*no such file"):
        run_train_benchmark(tmp_path / "nowhere.json", encoder=str(tiny_bert), contestants=["ours"])
