"""Rounds from questions and answers alone; stopped before every stage and gone on with."""

import json
from pathlib import Path
from typing import Any

import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.rounds.config import ColbertRoundsConfig
from rag.rounds.rounds import run_rounds, table
from retrievers.training.colbert import ColbertTrainConfig
from tests.commands import exit_code
from tests.unit.rag.rounds.test_rounds import world

__all__ = ["world"]  # the fixture


def run(world: dict[str, Any], out: Path, steps: int | None = None, **more: Any) -> list[str]:
    training = ColbertTrainConfig(
        out=out, train_files=(out / "x",), question_encoder=world["encoder"],
        projection_dim=32, question_tokens=12, passage_tokens=16, batch_size=16, epochs=24, max_steps=steps,
        learning_rate=3e-3, validation_fraction=0.0, precision="fp32", threads=1, hard_negatives=2,
        temperature=0.2, dropout=0.0,
    )  # fmt: skip
    given = {
        "index": world["folder"] / "index", "questions": world["folder"] / "train.jsonl", "rounds": 1,
        "top_k": 40, "figure": "top1", "validation_fraction": 0.4, "restart": True, **more,
    }  # fmt: skip
    given = {"positives": "1,40", "negatives": 8, **given}
    config = load_config(
        ColbertRoundsConfig, overrides={"out": out, **given, "questions": str(given["questions"])}
    )
    return table(run_rounds(config, training), config.figure)


def test_a_round_gains(world: dict[str, Any], tmp_path: Path) -> None:
    lines = run(world, tmp_path / "run")
    told = json.loads((tmp_path / "run" / "rounds.json").read_text())
    assert told["best"] == 1
    assert told["rounds"][1]["figures"]["top5"] > told["rounds"][0]["figures"]["top5"] + 10, lines
    assert told["rounds"][1]["facts"]["positives"] > 40
    assert "positives" in lines[2]


def test_where_words_were_searched_they_are_in_every_round(world: dict[str, Any], tmp_path: Path) -> None:
    with Index.open(world["folder"] / "index") as source:
        build_index(source.passages, tmp_path / "words", settings=BuildSettings(retriever="bm25"))
    run(world, tmp_path / "run", steps=1, index=tmp_path / "words")
    with Index.open(tmp_path / "run" / "round-1" / "index") as made:
        assert made.parts == ("tokens", "bm25")


def test_what_cannot_be_is_said(
    world: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="raise it to 50"):
        run(world, tmp_path / "a", positives="3,50")
    strange = tmp_path / "strange.jsonl"
    strange.write_text(
        "".join(json.dumps({"question": f"who {n}", "answer": ["zzz"]}) + "\n" for n in range(30))
    )
    with pytest.raises(DataError, match="holds an answer"):
        run(world, tmp_path / "b", questions=strange)
    given = ["rounds", "--recipe", "colbert", "--out", str(tmp_path / "c"), "--questions", str(strange)]
    given += ["--index", str(world["folder"] / "index")]
    for more, words in (
        (["--signal", "likelihood"], "--signal is not read with --recipe colbert"),
        (["--set", "select_by=mrr"], "select_by=mrr is measured by searching"),
    ):
        assert exit_code(*given, *more) == 2
        assert words in capsys.readouterr().err
