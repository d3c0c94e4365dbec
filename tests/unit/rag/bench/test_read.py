"""The benchmark of reading: what it counts, by effort and precision."""

from pathlib import Path

import pytest

import rag
from rag.bench.read import run_read_benchmark
from rag.core.errors import ConfigError
from rag.data.files.rows import write_json_lines
from tests.support.messages import refusal

FACTS = {"Danube": "Black Forest", "Rhine": "Swiss Alps", "Elbe": "Giant Mountains"}


def test_efforts_are_compared_on_the_same_questions(tmp_path: Path) -> None:
    passages = [
        f"The {river} rises in the {place}. It flows far." for river, place in FACTS.items()
    ]
    rag.Pipeline.from_texts(passages * 4, out=tmp_path / "index", reader=False).close()
    lines = [
        {"question": f"Where does the {river} rise?", "answers": [place, f"in the {place}"]}
        for river, place in FACTS.items()
    ]
    lines[2]["answers"] = ["somewhere else"]
    write_json_lines(tmp_path / "q.jsonl", lines)
    given = tmp_path / "index", tmp_path / "q.jsonl"
    report = run_read_benchmark(*given, efforts=("full", "normal"), sample=3, top_k=8, batch_size=2)
    full = report.rows["full"]
    normal = report.rows["normal"]
    assert full["EM"].value == normal["EM"].value == pytest.approx(200 / 3)
    assert full["× full"].value == full["token-layers, %"] / 100 == 1
    assert 0 < normal["token-layers, %"] < 60
    assert normal["ms a question"] > 0
    assert normal["ms in batches"] > 0
    assert normal["EM"].n == 3

    given_numbers = {"sample": 3, "top_k": 8, "batch_size": 1, "precision": ("fp32", "auto")}
    report = run_read_benchmark(*given, efforts=("normal",), **given_numbers)
    assert list(report.rows) == ["normal, fp32", "normal, auto"]
    assert report.rows["normal, fp32"]["processor / normal, fp32"].value == 1
    assert report.rows["normal, auto"]["median processor ms"].value > 0

    with refusal(ConfigError):
        run_read_benchmark(*given, efforts=("frantic",), sample=1)
